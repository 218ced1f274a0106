"""`JudgeDecoding`: judge decoding as a `custom_generate` callable.

transformers prepares inputs, processors, criteria and cache; this checks the call, chooses the parts that fit it, and
hands them to the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.stopping_criteria import StopStringCriteria

from ..judge import SelfJudgeVerifier
from ..rules import Rule, as_rule
from . import checks
from .caches import NoStaticCaches, RowCaches, why_not_static
from .draft_length import FixedLength
from .drafting import Drafter, DraftModelGenerator, DraftSettings, StockDrafter, draft_length
from .loop import JudgeDecoderOnlyOutput, Outputs, Queue, Session
from .rows import Row
from .statistics import JudgeStats
from .stopping import Stopper
from .target import RowsTarget, SingleTarget
from .timing import PhaseTimer

logger = logging.getLogger(__name__)

_learned: WeakKeyDictionary[PreTrainedModel, dict[tuple[Any, ...], FixedLength]] = WeakKeyDictionary()


class JudgeDecoding:
    """Speculative decoding in which a judge may accept what exact verification would reject.

    Use it by `model.generate(..., assistant_model=draft, judge=judge)`, or without any hook by
    `model.generate(..., custom_generate=JudgeDecoding(draft, judge))`.

    Args:
        draft: the draft model; None with prompt lookup, early exit or multi-token prediction.
        judge: a judge, a rule, a rule's spec, or a judge's folder or Hub id; None decodes exactly.
        mode: "two-stage" (alignment or judge), "judge-only", or "alignment-only" (exact).
        strict_pair: refuse, instead of warning, a judge trained for another pair.
        tokenizer, assistant_tokenizer: needed for stop strings, for drafts with another vocabulary, and for a spec with
            a guard.
        streamer: receives tokens as they are accepted.
        stop_strings: strings that end the response, as `generate`'s own argument (which needs the hook).
        stats_callback: called with the `JudgeStats` of each call.
        rows_at_once: of a batch, the most rows decoded together; the others take the places of those that are done,
            which keeps a GPU busy. Needs static caches. Default: all.
        draft_settings: num_assistant_tokens, num_assistant_tokens_schedule, assistant_confidence_threshold.
    """

    def __init__(
        self,
        draft: PreTrainedModel | None = None,
        judge: SelfJudgeVerifier | Rule | str | None = None,
        *,
        mode: str = "two-stage",
        strict_pair: bool = False,
        tokenizer: Any = None,
        assistant_tokenizer: Any = None,
        streamer: Any = None,
        stop_strings: str | list[str] | None = None,
        stats_callback: Callable[[JudgeStats], None] | None = None,
        rows_at_once: int | None = None,
        **draft_settings: Any,
    ) -> None:
        checks.check_mode(mode)
        unknown = sorted(set(draft_settings) - set(DraftSettings.__dataclass_fields__))
        if unknown:
            raise TypeError(f"JudgeDecoding got unknown arguments {unknown}.")
        if rows_at_once is not None and rows_at_once < 1:
            raise ValueError(f"rows_at_once is {rows_at_once!r}, expected at least 1.")
        if stop_strings is not None and tokenizer is None:
            raise ValueError("stop_strings needs tokenizer=.")
        self.draft = draft
        self.rule = None if judge is None else as_rule(judge, tokenizer)
        self.mode = mode
        self.strict_pair = strict_pair
        self.tokenizer = tokenizer
        self.assistant_tokenizer = assistant_tokenizer
        self.streamer = streamer
        self.stop_strings = stop_strings
        self.stats_callback = stats_callback
        self.rows_at_once = rows_at_once
        self.draft_settings = draft_settings

    def check_pair(self, model: PreTrainedModel) -> None:
        """Refuse a target, draft or judge that do not fit together, before anything runs."""
        checks.check_target(model)
        checks.check_judge(model, self.draft, self.rule, self.strict_pair)

    @torch.no_grad()
    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> JudgeDecoderOnlyOutput | Tensor:
        """Decode; called by transformers' `generate`."""
        self.check_pair(model)
        checks.check_call(input_ids, generation_config, logits_processor, model_kwargs)
        if input_ids.shape[0] > 1:
            checks.check_ragged(model, self.draft)
            if self.streamer is not None:
                raise ValueError("streamer= receives one sequence at a time, not a batch; leave it out.")
        tokenizers = (self.tokenizer, self.assistant_tokenizer)
        checks.check_drafter(model, self.draft, generation_config, self.rule, tokenizers)
        padding = checks.left_padding(input_ids, model_kwargs.get("attention_mask"))
        queue = Queue(padding, min(self.rows_at_once or len(padding), len(padding)))
        caches = self._caches(model, padding[: queue.at_once], generation_config, model_kwargs)
        if queue.at_once < len(padding) and not caches.static:
            raise NoStaticCaches(
                f"rows_at_once = {queue.at_once} of {len(padding)} rows needs static caches, which this call does not "
                "have; give smaller batches, or cache_implementation='static' to see why."
            )
        drafter = self._drafter(model, input_ids, caches, logits_processor, generation_config, model_kwargs)
        session = Session(
            drafter=drafter,
            target=self._target(model, caches, drafter, model_kwargs),
            stopper=self._stopper(stopping_criteria, generation_config),
            processors=logits_processor,
            rule=None if self.rule is None else self.rule.to(input_ids.device),
            mode=self.mode,
            do_sample=bool(generation_config.do_sample),
            streamer=self.streamer,
            outputs=Outputs(generation_config),
            timer=PhaseTimer(input_ids.device),
        )
        rows = [Row(self.mode) for _ in range(input_ids.shape[0])]
        session.run(input_ids, rows, queue)
        stats = _total(rows, session.timer)
        if self.stats_callback is not None:
            self.stats_callback(stats)
        return session.outputs.finish(_padded(rows, generation_config), session.target, stats)

    def _caches(
        self, model: PreTrainedModel, padding: list[int], config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> RowCaches:
        """Static caches on a GPU where both models can, or where asked for; else dynamic ones."""
        settings = DraftSettings.resolve(self.draft_settings, config, self.draft)
        caches = RowCaches(padding, True, settings, config.max_length)
        reason = why_not_static(model, self.draft if self._steps_a_draft(config) else None, model_kwargs, caches)
        asked = config.cache_implementation
        if asked == "static" and reason is not None:
            raise NoStaticCaches(f"cache_implementation='static' cannot be had: {reason}. Leave it out.")
        if asked is None and model.device.type == "cuda" and reason is not None:
            logger.info("Dynamic caches, without CUDA graphs: %s.", reason)
        static = reason is None and (asked == "static" or (asked is None and model.device.type == "cuda"))
        return replace(caches, static=static)

    def _steps_a_draft(self, config: GenerationConfig) -> bool:
        """Whether our own generator drafts: a draft model of the same vocabulary, stepped token by token."""
        other_vocabulary = None not in (self.tokenizer, self.assistant_tokenizer) and not checks.same_vocabulary(
            self.tokenizer, self.assistant_tokenizer
        )
        plain = config.assistant_early_exit is None and config.prompt_lookup_num_tokens is None
        return self.draft is not None and plain and not other_vocabulary and _is_ordinary_draft(self.draft, config)

    def _drafter(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        caches: RowCaches,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> Drafter:
        """Our own generator for a draft of the same vocabulary, transformers' for everything else."""
        if self.draft is not None and self._steps_a_draft(config):
            vocab_size = model.config.get_text_config().vocab_size
            return DraftModelGenerator(
                self.draft,
                caches.settings,
                vocab_size=vocab_size,
                logits_processor=processors,
                do_sample=bool(config.do_sample),
                eos_token_ids=_eos_token_ids(config),
                cached=caches.of(self.draft, vocab_size),
                length=self._length(caches),
                keeps_logits=bool(config.do_sample) or self._reads_draft_logits,
            )
        if len(caches.padding) > 1:
            raise ValueError(
                "A batch of several sequences needs a draft model with the target's tokenizer; transformers' other "
                "drafters take one sequence at a time."
            )
        tokenizers = (self.tokenizer, self.assistant_tokenizer)
        same = None in tokenizers or checks.same_vocabulary(*tokenizers)
        return StockDrafter(
            model._get_candidate_generator(
                generation_config=config,
                input_ids=input_ids,
                inputs_tensor=input_ids,
                logits_processor=processors,
                model_kwargs=model_kwargs,
                assistant_model=self.draft,
                target_tokenizer=None if same else self.tokenizer,
                assistant_tokenizer=None if same else self.assistant_tokenizer,
            ),
            caches.settings,
        )

    @property
    def _reads_draft_logits(self) -> bool:
        """Whether greedy decoding under this rule looks at the draft's distribution."""
        return self.rule is not None and self.mode != "alignment-only" and self.rule.needs_draft_logits

    def _length(self, caches: RowCaches) -> FixedLength:
        """How many tokens to draft. What an adaptive length has learned is kept for later calls of the same kind."""
        if self.draft is None:
            raise RuntimeError("Only a draft model has a draft length.")
        watches = self.draft.device.type != "cuda"  # a look at each token costs a GPU more than it gains
        if caches.settings.num_assistant_tokens_schedule != "adaptive":
            return draft_length(caches.settings, watches, caches.longest_draft if caches.static else None)
        kept = _learned.setdefault(self.draft, {})
        key = (self.mode, str(self.rule), caches.settings, len(caches.padding), caches.static)
        if key not in kept:
            kept[key] = draft_length(caches.settings, watches)
        return kept[key]

    def _target(
        self, model: PreTrainedModel, caches: RowCaches, drafter: Drafter, model_kwargs: dict[str, Any]
    ) -> SingleTarget | RowsTarget:
        """One row with a dynamic cache goes through transformers' own protocol; else each row has its own length."""
        if caches.static or len(caches.padding) > 1:
            return RowsTarget(caches.of(model, with_hidden=True), caches.granule)
        generator = getattr(drafter, "generator", None)
        return SingleTarget(model, model_kwargs, getattr(generator, "model_kwargs_overrides", {}))

    def _stopper(self, criteria: StoppingCriteriaList, config: GenerationConfig) -> Stopper:
        criteria = StoppingCriteriaList(criteria)
        if self.stop_strings is not None:
            criteria.append(StopStringCriteria(stop_strings=self.stop_strings, tokenizer=self.tokenizer))
        return Stopper(criteria, _eos_token_ids(config), config.max_length)


def _eos_token_ids(config: GenerationConfig) -> frozenset[int]:
    eos = config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else [int(token) for token in eos])


def _is_ordinary_draft(draft: PreTrainedModel, config: GenerationConfig) -> bool:
    """Whether the draft is a causal LM to be stepped token by token (not an assistant head of another kind)."""
    special = type(draft).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))
    return not special and getattr(config, "speculation_type", None) is None and not getattr(config, "use_mtp", False)


def _total(rows: list[Row], timer: PhaseTimer) -> JudgeStats:
    """The call's statistics; a batch keeps those of its rows."""
    stats = rows[0].stats
    if len(rows) > 1:
        stats = sum((row.stats for row in rows[1:]), rows[0].stats)
        stats.rows = [row.stats for row in rows]
    stats.seconds.update(timer.seconds())
    return stats


def _padded(rows: list[Row], config: GenerationConfig) -> Tensor:
    """All sequences as one tensor, padded on the right as `generate` does."""
    texts = [row.text for row in rows if row.text is not None]
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    width = max(text.shape[1] for text in texts)
    return torch.cat([torch.nn.functional.pad(text, (0, width - text.shape[1]), value=pad) for text in texts])
