"""Stage 1: the target's own greedy responses, the text whose meaning a judge must keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import PreTrainedModel

from .completion import complete
from .records import Response


def respond(
    target: PreTrainedModel, prompts: Sequence[list[int]], max_new_tokens: int, batch_size: int = 16
) -> Iterator[Response]:
    """Greedy responses to tokenised prompts, as they are ready; `prompt_id` is the index in `prompts`."""
    for index, answer in complete(target, prompts, max_new_tokens, batch_size, "respond"):
        yield Response(index, list(prompts[index]), answer)
