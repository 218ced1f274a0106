"""Whether an answer still is the response's: by the prompts' checkers, or by asking the target (AutoJudge+)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from transformers import PreTrainedModel

from ..checkers import get_checker
from ..checkers.meaning import ask, read
from ..checkers.sandbox import cores
from .completion import complete, end_tokens
from .records import Prompt, Response
from .settings import LabelSettings
from .storage.progress import counted

VERDICT_TOKENS = 32
"""What the target may write to say [SAME] or [DIFFERENT]."""
Text = tuple[int, str]
"""A prompt's id and an answer to it."""

log = logging.getLogger(__name__)


def context_length(target: PreTrainedModel) -> int | None:
    """How many positions the target has, if it says so."""
    return getattr(target.config.get_text_config(), "max_position_embeddings", None)


class Verdicts:
    """What decides whether an answer is still the response's: the prompts' checkers, or the target itself."""

    def __init__(
        self,
        target: PreTrainedModel,
        tokenizer: Any,
        prompts: Sequence[Prompt],
        responses: Sequence[Response],
        settings: LabelSettings,
        batch_size: int,
        seed: int,
    ) -> None:
        self._target, self._tokenizer, self._batch_size, self._seed = target, tokenizer, batch_size, seed
        self._prompts = {prompt.prompt_id: prompt for prompt in prompts}
        self._own: dict[int, Any] = {}  # each response's outcome, or its text where there is no checker
        self._verdicts: dict[Text, bool | None] = {}
        self._find_own(responses, settings.open_tasks == "autojudge+")

    @property
    def usable(self) -> frozenset[int]:
        """The prompts whose response has something to compare with."""
        return frozenset(self._own)

    def decide(self, texts: Iterable[Text]) -> None:
        """Find the verdicts on these answers, on each text once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._verdicts]
        checked = [text for text in new if self._prompts[text[0]].checker is not None]
        for (prompt_id, text), found in zip(checked, self._outcomes(checked), strict=True):
            checker = get_checker(self._prompts[prompt_id].checker or "")
            self._verdicts[prompt_id, text] = found is not None and checker.same(self._own[prompt_id], found)
        self._ask([text for text in new if self._prompts[text[0]].checker is None])

    def kept(self, text: Text) -> bool | None:
        """Whether the answer is still the same; None if nobody could say."""
        return self._verdicts[text]

    def _find_own(self, responses: Sequence[Response], open_too: bool) -> None:
        ends = set(end_tokens(self._target))
        cut, texts = 0, []
        for response in responses:
            prompt = self._prompts.get(response.prompt_id)
            if prompt is None or (prompt.checker is None and not open_too):
                continue
            text = self._tokenizer.decode(response.answer, skip_special_tokens=True)
            if prompt.checker is None:
                self._know(prompt.prompt_id, text, text)
            elif ends and not ends.intersection(response.answer[-1:]):
                cut += 1  # its answer is not written yet
            else:
                texts.append((prompt.prompt_id, text))
        if cut:
            log.warning("AutoJudge leaves out %d responses that did not end: raise max_new_tokens to use them.", cut)
        for (prompt_id, text), found in zip(texts, self._outcomes(texts), strict=True):
            if found is not None:
                self._know(prompt_id, text, found)

    def _know(self, prompt_id: int, text: str, own: Any) -> None:
        """Remember what a response's own outcome is; an answer with the same text needs no other look."""
        self._own[prompt_id] = own
        self._verdicts[prompt_id, text] = True

    def _outcomes(self, texts: Sequence[Text]) -> list[Any]:
        with ThreadPoolExecutor(cores()) as pool:  # programs run in processes of their own meanwhile
            return list(counted(pool.map(self._outcome, texts), "check", unit="answer"))

    def _outcome(self, text: Text) -> Any:
        prompt = self._prompts[text[0]]
        try:
            return get_checker(prompt.checker or "").outcome(text[1], prompt.reference)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"Prompt {prompt.prompt_id} of {prompt.source} cannot be checked: {error}") from error

    def _ask(self, texts: Sequence[Text]) -> None:
        """The target's verdicts; none where the question is longer than its context."""
        questions: dict[Text, list[int]] = {}
        context = context_length(self._target)
        for prompt_id, text in texts:
            self._verdicts[prompt_id, text] = None
            order = f"{self._seed}/{prompt_id}/{text}"
            tokens = self._chat(ask(self._prompts[prompt_id].text, self._own[prompt_id], text, order))
            if context is None or len(tokens) + VERDICT_TOKENS <= context:
                questions[prompt_id, text] = tokens
        asked = list(questions)
        replies = complete(self._target, list(questions.values()), VERDICT_TOKENS, self._batch_size, "same?")
        for place, reply in replies:
            self._verdicts[asked[place]] = read(self._tokenizer.decode(reply, skip_special_tokens=True))

    def _chat(self, text: str) -> list[int]:
        """A question as the target reads it."""
        if getattr(self._tokenizer, "chat_template", None) is None:
            return list(self._tokenizer(text, verbose=False)["input_ids"])
        message = [{"role": "user", "content": text}]
        return list(
            self._tokenizer.apply_chat_template(
                message, add_generation_prompt=True, return_dict=False, tokenizer_kwargs={"verbose": False}
            )
        )
