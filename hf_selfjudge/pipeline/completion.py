"""Greedy completion of many token sequences with a plain model, used wherever a stage lets a model write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedModel


@torch.no_grad()
def complete(
    model: PreTrainedModel,
    prefixes: Sequence[list[int]],
    max_new_tokens: int,
    batch_size: int = 16,
    progress: str = "complete",
) -> Iterator[tuple[int, list[int]]]:
    """Continue each prefix greedily; yields (index, new tokens), the end-of-sequence token included.

    `progress` names the progress bar, which is shown on terminals only.

    The longest prefixes come first, so that batches have little padding. The model's own generation config may carry
    sampling or penalties; labels need the plain argmax, so only its special tokens are taken over.
    """
    order = sorted(range(len(prefixes)), key=lambda index: -len(prefixes[index]))
    own = model.generation_config
    eos = end_tokens(model)
    pad = own.pad_token_id if own.pad_token_id is not None else (eos[0] if eos else 0)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=eos or None, pad_token_id=pad, bos_token_id=None
    )
    for start in tqdm(range(0, len(order), batch_size), progress, unit="batch", disable=None):
        batch = order[start : start + batch_size]
        width = max(len(prefixes[index]) for index in batch)
        ids = torch.full((len(batch), width), pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(batch):
            ids[row, width - len(prefixes[index]) :] = torch.tensor(prefixes[index])
            mask[row, width - len(prefixes[index]) :] = 1
        model.generation_config = config  # generate fills what a passed config leaves open from the model's own
        try:
            output = model.generate(input_ids=ids.to(model.device), attention_mask=mask.to(model.device))
        finally:
            model.generation_config = own
        for row, index in enumerate(batch):
            yield index, _until_end(output[row, width:].tolist(), set(eos))


def end_tokens(model: PreTrainedModel) -> list[int]:
    """The model's end-of-sequence tokens."""
    eos = model.generation_config.eos_token_id
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def _until_end(tokens: list[int], eos: set[int]) -> list[int]:
    """Cut the padding behind the end-of-sequence token, keeping that token."""
    for index, token in enumerate(tokens):
        if token in eos:
            return tokens[: index + 1]
    return tokens
