"""Stage 2: mismatches, the positions where the draft would have written something else than the target did."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from .records import Mismatches, Response


@torch.no_grad()
def mine(draft: PreTrainedModel, responses: Sequence[Response]) -> list[Mismatches]:
    """Read each response with the draft (teacher forcing, one padded batch) and keep where its top token differs."""
    texts = [response.prompt + response.answer for response in responses]
    width = max(len(text) for text in texts)
    ids = torch.zeros((len(texts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):  # right padding: a causal model never sees it
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    logits = draft(input_ids=ids.to(draft.device), attention_mask=mask.to(draft.device)).logits
    found = []
    for row, response in enumerate(responses):
        first = len(response.prompt) - 1  # the row of logits that predicts the answer's first token
        rows = logits[row, first : first + len(response.answer)].float().cpu()
        choice = rows.argmax(dim=-1)
        at = (choice != torch.tensor(response.answer)).nonzero().squeeze(-1)
        found.append(Mismatches(at.tolist(), choice[at].tolist(), rows[at]))
    return found
