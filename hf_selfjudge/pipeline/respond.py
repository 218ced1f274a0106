"""Stage: the target's own greedy responses, the text whose meaning a judge must keep."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from .completion import complete
from .records import Prompt, Response
from .settings import RespondSettings


def respond(
    target: PreTrainedModel, prompts: Sequence[Prompt], settings: RespondSettings, progress: str | None = None
) -> list[Response]:
    """The target's greedy responses, in the order of the prompts."""
    texts = [prompt.tokens for prompt in prompts]
    answers = dict(complete(target, texts, settings.max_new_tokens, settings.batch_size, progress))
    return [Response(prompt.prompt_id, list(prompt.tokens), answers[index]) for index, prompt in enumerate(prompts)]
