"""`SelfJudgeLM`: judge decoding as a model of lm_eval, registered under the name "selfjudge".

Generation goes through our loop with a draft and an acceptance rule; log-likelihoods are the target's alone, as HFLM
computes them. Written against what lm_eval 0.4.10 and later have: HFLM's tokenizer, device and cache hook.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList

from .. import install
from ..config import MODES
from ..decoding.drafting import DraftSettings
from ..evaluation.grammar import Point, parse_spec
from ..evaluation.judges import Judges
from ..evaluation.providers import model_folder
from ..rules.spec import GUARDS, JUDGE
from .response import Response, count, total

log = logging.getLogger(__name__)

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that lm_eval takes for the longest response, the first given one counts."""


@register_model("selfjudge")
class SelfJudgeLM(HFLM):
    """A target and a draft with an acceptance rule.

    Args:
        pretrained: the target: folder, Hub id, `playground`, or a loaded model.
        assistant: the draft, the same way.
        judge: a judge's folder or Hub id, or `playground`; decoding is exact with neither judge nor rule.
        threshold: the judge's operating point: a name in its config, or a theta; its default if left out.
        rule: instead of judge, a rule in the grammar of `selfjudge compare`: topk:2, judge:FOLDER@f1&floor:0.01, ...
        gamma: tokens drafted per block.
        mode: two-stage, judge-only or alignment-only.
        never_relax: digits, special, or digits+special: tokens that only exact verification accepts.
        schedule: constant or adaptive: whether gamma is fixed or the longest block.
        assistant_dtype: dtype of the draft; the target's if left out.
        assistant_revision: revision of the draft on the Hub.
        strict_pair: refuse a judge that was trained for another pair.
        options: everything that lm_eval's `hf` takes: dtype, device, batch_size, tokenizer, revision, ...
    """

    def __init__(
        self,
        pretrained: Any,
        assistant: Any = None,
        judge: str | None = None,
        threshold: str | float | None = None,
        rule: str | None = None,
        gamma: int = 5,
        mode: str = "two-stage",
        never_relax: str | None = None,
        schedule: str = "constant",
        assistant_dtype: str | None = None,
        assistant_revision: str | None = None,
        strict_pair: bool = False,
        **options: Any,
    ) -> None:
        if assistant is None:
            raise ValueError("The model selfjudge needs a draft: add assistant=FOLDER_OR_HUB_ID to --model_args.")
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, expected one of {', '.join(MODES)}.")
        if not str(gamma).isdecimal() or int(gamma) < 1:
            raise ValueError(f"gamma is {gamma!r}, expected an int of at least 1.")
        gamma = int(gamma)
        DraftSettings(gamma, schedule)  # refuses an unknown schedule
        point = make_point(judge, threshold, rule, never_relax, gamma)
        judges = Judges()
        identity = judges.identity(point)  # finds what is wrong with the rule before any model is loaded
        install()
        target = model_folder(pretrained, "target") if isinstance(pretrained, str) else pretrained
        super().__init__(target, **options)
        self.rule = judges.rule(point, self.tokenizer)
        self._load_assistant(assistant, assistant_dtype, assistant_revision, bool(options.get("trust_remote_code")))
        self.settings = {
            "target": getattr(target, "name_or_path", target),
            "assistant": self.assistant.name_or_path,
            "rule": point.spec,
            "rule_identity": identity,
            "gamma": gamma,
            "mode": mode,
            "schedule": schedule,
            "dtype": str(self.model.dtype),
            "assistant_dtype": str(self.assistant.dtype),
            "revisions": [str(options.get("revision", "main")), str(assistant_revision or "main")],
        }
        self._keywords = {
            "judge": self.rule,
            "judge_mode": mode,
            "num_assistant_tokens": gamma,
            "num_assistant_tokens_schedule": schedule,
            "strict_pair": strict_pair,
        }
        self._counts: list[dict[str, float]] = []

    def _load_assistant(self, assistant: Any, dtype: str | None, revision: str | None, trust: bool) -> None:
        """Load the draft beside the target, with its own tokenizer where the vocabularies differ."""
        folder = None
        if isinstance(assistant, str):
            folder = model_folder(assistant, "draft")
            assistant = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype or self.model.dtype, revision=revision or "main", trust_remote_code=trust
            )
        self.assistant = assistant.to(self.device).eval()
        sizes = [model.config.get_text_config().vocab_size for model in (self.model, self.assistant)]
        self._tokenizers = {}
        if sizes[0] != sizes[1]:
            theirs = AutoTokenizer.from_pretrained(folder or self.assistant.name_or_path, revision=revision or "main")
            self._tokenizers = {"tokenizer": self.tokenizer, "assistant_tokenizer": theirs}

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Use lm_eval's response cache, with our settings in its keys: it keys by prompt and arguments only."""
        store = getattr(cache_hook, "dbdict", None)
        if store is not None:
            if not hasattr(store, "encode_key"):
                raise NotImplementedError(
                    f"This lm_eval keeps responses in a {type(store).__name__}, whose keys cannot be told apart by "
                    "rule; leave out --use_cache."
                )
            mark = self.fingerprint()
            store.encode_key = lambda key: f"{mark}/{key}"
            store.decode_key = lambda key: key.removeprefix(f"{mark}/")
        super().set_cache_hook(cache_hook)

    def fingerprint(self) -> str:
        """A short hash of all that decides a response and its counts beside the request."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:16]

    def get_model_info(self) -> dict[str, Any]:
        """HFLM's facts, our settings, and the totals over what was generated (cached responses are not in them)."""
        return {**super().get_model_info(), "selfjudge": {**self.settings, "totals": total(self._counts)}}

    @torch.no_grad()
    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answer all requests; each response is a `Response` with its counts."""
        answers: list[Response | None] = [None] * len(requests)
        lengths = [len(self.tok_encode(request.args[0])) for request in requests]
        groups: dict[str, list[int]] = {}
        for index in sorted(range(len(requests)), key=lambda index: -lengths[index]):
            groups.setdefault(json.dumps(requests[index].args[1], sort_keys=True, default=str), []).append(index)
        size = self._detect_batch_size() if self.batch_size == "auto" else int(self.batch_size)
        with tqdm(total=len(requests), disable=disable_tqdm or self.rank != 0, desc="selfjudge") as bar:
            for group in groups.values():
                for first in range(0, len(group), size):
                    batch = group[first : first + size]
                    prompts, given = [requests[index].args[0] for index in batch], requests[batch[0]].args[1]
                    for index, answer in zip(batch, self._answer(prompts, given), strict=True):
                        answers[index] = answer
                        self.cache_hook.add_partial("generate_until", requests[index].args, answer)
                    bar.update(len(batch))
        return [answer for answer in answers if answer is not None]

    def _answer(self, prompts: Sequence[str], given: dict[str, Any]) -> list[Response]:
        """Answer one batch of prompts with the same generation arguments."""
        keywords = dict(given)
        until = keywords.pop("until", None) or []
        until = [until] if isinstance(until, str) else [*until]
        until.append(self.tok_decode(self.eot_token_id, skip_special_tokens=False))
        lengths = [int(keywords.pop(name)) for name in LENGTHS if keywords.get(name) is not None]
        longest = lengths[0] if lengths else self.max_gen_toks
        for name in LENGTHS:
            keywords.pop(name, None)
        if longest >= self.max_length:
            raise ValueError(
                f"max_gen_toks is {longest}, but prompt and response together have {self.max_length} tokens at most; "
                "ask for fewer by --gen_kwargs max_gen_toks=N."
            )
        inputs, mask = self.tok_batch_encode(
            list(prompts), left_truncate_len=self.max_length - longest, truncation=self.truncation
        )
        begun = time.perf_counter()
        out = self._model_generate(
            inputs.to(self.device),
            keywords.pop("max_length", inputs.shape[1] + longest),
            [text for text in until if text],
            attention_mask=mask.to(self.device),
            **keywords,
        )
        tokens = out.sequences[:, inputs.shape[1] :].tolist()  # waits for the device
        seconds = (time.perf_counter() - begun) / len(prompts)
        counts = [count(row, seconds) for row in (out.judge_stats.rows or [out.judge_stats])]
        self._counts += counts
        return [Response(self._text(row, until), one) for row, one in zip(tokens, counts, strict=True)]

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **keywords: Any) -> Any:
        """One `generate` call through our loop, with `judge_stats` in its output."""
        temperature = float(keywords.pop("temperature", None) or 0.0)
        sampled = keywords.pop("do_sample", None)
        keywords["do_sample"] = temperature > 0 if sampled is None else bool(sampled)
        if keywords["do_sample"] and temperature > 0:
            keywords["temperature"] = temperature
        mixed = getattr(self, "mixed_precision_dtype", None)
        with torch.autocast(self.device.type, dtype=mixed) if mixed is not None else nullcontext():
            return self.model.generate(
                input_ids=context,
                # max_length would lose against a max_new_tokens in the model's own generation config
                max_new_tokens=max_length - context.shape[1],
                stopping_criteria=StoppingCriteriaList([StopTexts(stop, self.tokenizer, context.shape[1])]),
                pad_token_id=self.tokenizer.pad_token_id,
                use_cache=True,
                assistant_model=self.assistant,
                return_dict_in_generate=True,
                **self._tokenizers,
                **self._keywords,
                **keywords,
            )

    def _text(self, tokens: list[int], until: list[str]) -> str:
        """The text of a response: behind the thoughts of a thinking model, up to the first stop text."""
        ends = getattr(self, "think_end_token", None)
        if isinstance(ends, int) and ends in tokens:
            tokens = tokens[len(tokens) - tokens[::-1].index(ends) :]
        text = self.tok_decode(tokens)
        if isinstance(ends, str):
            text = text.split(ends)[-1]
        text = text.lstrip() if ends is not None else text
        for stop in until:
            text = text.split(stop)[0] if stop else text
        return text


class StopTexts(StoppingCriteria):
    """Ends a response once one of the texts stands in it; the prompt does not count.

    Asked about one row at a time, after each token, so a stop inside an accepted block ends the response there.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any, start: int) -> None:
        self._texts = list(texts)
        self._tokenizer = tokenizer
        self._start = start
        # a token is at least a byte, so this many surely hold a text and what its first token begins with
        self._window = max((len(text.encode()) for text in self._texts), default=0) + 2

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """For each row, whether it ends here. (batch,)"""
        tails = self._tokenizer.batch_decode(input_ids[:, self._start :][:, -self._window :])
        return torch.tensor([any(text in tail for text in self._texts) for tail in tails], device=input_ids.device)


def make_point(
    judge: str | None, threshold: str | float | None, rule: str | None, never_relax: str | None, gamma: int
) -> Point:
    """The acceptance rule that the model's arguments describe."""
    if judge is not None and rule is not None:
        raise ValueError(
            f"judge={judge} and rule={rule} are both given; give one of them, or combine them in the rule, such as "
            f"rule=judge:{judge}@f1&{rule}."
        )
    if threshold is not None and judge is None:
        raise ValueError(f"threshold={threshold} is given without judge=; add judge=FOLDER, or write @ in the rule.")
    guards = tuple(part for part in (never_relax or "").split("+") if part)
    unknown = [part for part in guards if part not in GUARDS]
    if unknown:
        raise ValueError(f"never_relax has {unknown[0]!r}, expected some of {', '.join(GUARDS)}, joined by +.")
    if judge is not None:
        return Point("", ((JUDGE + judge + ("" if threshold is None else f"@{threshold}"),),), guards)
    spec = parse_spec(rule or "exact", gamma)
    points = [] if spec.swept_judges else spec.points({})
    if len(points) != 1:
        raise ValueError(f"rule={rule} stands for several points; lm_eval runs one model at a time, so give one value.")
    return Point("", points[0].terms, tuple(dict.fromkeys((*points[0].guards, *guards))))
