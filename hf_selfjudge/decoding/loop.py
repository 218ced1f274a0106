"""The decoding loop: draft a block, verify it in one target forward, keep what stands.

`JudgeDecoding` is a `custom_generate` callable, so transformers prepares inputs, processors, criteria and cache, and
this loop takes over from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..features import Block, token_log_probs
from ..judge import SelfJudgeVerifier
from ..rules import Rule, as_rule
from ..verification import Verdict, consult, settle
from . import checks
from .drafting import Draft, Drafter, DraftModelGenerator, DraftSettings, StockDrafter
from .processing import process_scores
from .statistics import JudgeStats, Replacement, Source
from .stopping import Stopper
from .target import Target
from .timing import PhaseTimer


@dataclass
class JudgeDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """transformers' output with the statistics of the call."""

    judge_stats: JudgeStats | None = None


class JudgeDecoding:
    """Speculative decoding in which a judge may accept what exact verification would reject.

    Use it by `model.generate(..., assistant_model=draft, judge=judge)`, or without any hook by
    `model.generate(..., custom_generate=JudgeDecoding(draft, judge))`.

    Args:
        draft: the draft model; None with prompt lookup, early exit or multi-token prediction.
        judge: a judge, a rule, a rule's spec, or a judge's folder or Hub id; None decodes exactly.
        mode: "two-stage" (alignment or judge), "judge-only", or "alignment-only" (exact).
        strict_pair: refuse, instead of warning, a judge trained for another pair.
        tokenizer, assistant_tokenizer: needed for stop strings and for drafts with another vocabulary.
        streamer: receives tokens as they are accepted.
        stop_strings: strings that end the response, as `generate`'s own argument (which needs the hook).
        stats_callback: called with the `JudgeStats` of each call.
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
        **draft_settings: Any,
    ) -> None:
        checks.check_mode(mode)
        unknown = sorted(set(draft_settings) - set(DraftSettings.__dataclass_fields__))
        if unknown:
            raise TypeError(f"JudgeDecoding got unknown arguments {unknown}.")
        if stop_strings is not None and tokenizer is None:
            raise ValueError("stop_strings needs tokenizer=.")
        self.draft = draft
        self.rule = None if judge is None else as_rule(judge)
        self.mode = mode
        self.strict_pair = strict_pair
        self.tokenizer = tokenizer
        self.assistant_tokenizer = assistant_tokenizer
        self.streamer = streamer
        self.stop_strings = stop_strings
        self.stats_callback = stats_callback
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
        tokenizers = (self.tokenizer, self.assistant_tokenizer)
        checks.check_drafter(model, self.draft, generation_config, self.rule, tokenizers)
        drafter = self._drafter(model, input_ids, logits_processor, generation_config, model_kwargs)
        stopper = self._stopper(stopping_criteria, generation_config)
        rule = None if self.rule is None else self.rule.to(input_ids.device)
        generator = getattr(drafter, "generator", None)
        target = Target(model, model_kwargs, getattr(generator, "model_kwargs_overrides", {}))
        timer, stats = PhaseTimer(input_ids.device), JudgeStats(mode=self.mode)
        outputs = _Outputs(generation_config)
        prompt_length, done = input_ids.shape[1], False
        try:
            if self.streamer is not None:
                self.streamer.put(input_ids.cpu())
            while not done:
                with timer.phase("draft"):
                    draft = drafter.propose(input_ids, stopper.max_length - input_ids.shape[1] - 1, target)
                with timer.phase("target"):
                    seen = target.forward(input_ids, draft.tokens)
                with timer.phase("verify"):
                    scores = process_scores(logits_processor, input_ids, draft.tokens, seen.logits)
                    block = _block(draft, seen, scores, generation_config.do_sample)
                with timer.phase("judge"):
                    opinion = consult(block, rule, self.mode)
                with timer.phase("verify"):
                    verdict = settle(block, opinion, self.mode)
                    outcome = _Outcome.read(verdict, draft)
                outputs.add(seen.logits, scores, len(outcome.tokens))
                kept, done = stopper.cut(input_ids, outcome.tokens, outputs.scores)
                outputs.keep(kept - len(outcome.tokens))
                new = torch.tensor([outcome.tokens[:kept]], dtype=input_ids.dtype, device=input_ids.device)
                position = input_ids.shape[1] - prompt_length
                stats.add_cycle(outcome.sources[:kept], draft.tokens.shape[1], outcome.accepted)
                stats.replacements += _replacements(block, verdict, outcome.sources[:kept], position)
                input_ids = torch.cat([input_ids, new], dim=1)
                target.keep(kept, draft.tokens.shape[1])
                drafter.observe(input_ids, scores, min(kept, outcome.accepted), draft.tokens.shape[1])
                if self.streamer is not None:
                    self.streamer.put(new.cpu())
        finally:
            target.close()
        drafter.finish()
        if self.streamer is not None:
            self.streamer.end()
        stats.seconds.update(timer.seconds())
        if self.stats_callback is not None:
            self.stats_callback(stats)
        return outputs.finish(input_ids, target, stats)

    def _drafter(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> Drafter:
        """Our own generator for a draft of the same vocabulary, transformers' for everything else."""
        settings = DraftSettings.resolve(self.draft_settings, config, self.draft)
        other_vocabulary = None not in (self.tokenizer, self.assistant_tokenizer) and not checks.same_vocabulary(
            self.tokenizer, self.assistant_tokenizer
        )
        plain = config.assistant_early_exit is None and config.prompt_lookup_num_tokens is None
        if self.draft is not None and plain and not other_vocabulary and _is_ordinary_draft(self.draft, config):
            return DraftModelGenerator(
                self.draft,
                settings,
                vocab_size=model.config.get_text_config().vocab_size,
                logits_processor=processors,
                do_sample=bool(config.do_sample),
                eos_token_ids=_eos_token_ids(config),
                attention_mask=model_kwargs.get("attention_mask"),
            )
        return StockDrafter(
            model._get_candidate_generator(
                generation_config=config,
                input_ids=input_ids,
                inputs_tensor=input_ids,
                logits_processor=processors,
                model_kwargs=model_kwargs,
                assistant_model=self.draft,
                target_tokenizer=self.tokenizer if other_vocabulary else None,
                assistant_tokenizer=self.assistant_tokenizer if other_vocabulary else None,
            )
        )

    def _stopper(self, criteria: StoppingCriteriaList, config: GenerationConfig) -> Stopper:
        criteria = StoppingCriteriaList(criteria)
        if self.stop_strings is not None:
            criteria.append(StopStringCriteria(stop_strings=self.stop_strings, tokenizer=self.tokenizer))
        return Stopper(criteria, _eos_token_ids(config), config.max_length)


@dataclass(frozen=True)
class _Outcome:
    """A verdict on the host: the cycle's new tokens before any stop, and where each came from."""

    accepted: int
    tokens: list[int]
    sources: list[Source]

    @classmethod
    def read(cls, verdict: Verdict, draft: Draft) -> _Outcome:
        """Fetch everything in one transfer: the cycle's only host sync of the target side."""
        packed = torch.cat([verdict.accepted, verdict.next_token, draft.tokens[0], verdict.aligned[0].long()])
        accepted, next_token, *rest = packed.tolist()
        drafted = draft.tokens.shape[1]
        sources = [Source.MATCHED if aligned else Source.JUDGED for aligned in rest[drafted : drafted + accepted]]
        last = Source.BONUS if accepted == drafted else Source.CORRECTION
        return cls(accepted, [*rest[:accepted], next_token], [*sources, last])


class _Outputs:
    """Scores and logits per new token, if the call asks for them."""

    def __init__(self, config: GenerationConfig) -> None:
        self._as_dict = bool(config.return_dict_in_generate)
        self.scores: tuple[Tensor, ...] | None = () if self._as_dict and config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if self._as_dict and config.output_logits else None

    def add(self, logits: Tensor, scores: Tensor, count: int) -> None:
        """Append the rows of `count` new tokens."""
        if self.scores is not None:
            self.scores += tuple(scores[:, i] for i in range(count))
        if self.logits is not None:
            self.logits += tuple(logits[:, i] for i in range(count))

    def keep(self, surplus: int) -> None:
        """Drop the last `-surplus` rows, which a stop cut off."""
        if surplus < 0:
            self.scores = None if self.scores is None else self.scores[:surplus]
            self.logits = None if self.logits is None else self.logits[:surplus]

    def finish(self, sequences: Tensor, target: Target, stats: JudgeStats) -> JudgeDecoderOnlyOutput | Tensor:
        """What `generate` returns."""
        if not self._as_dict:
            return sequences
        return JudgeDecoderOnlyOutput(
            sequences=sequences,
            scores=self.scores,
            logits=self.logits,
            past_key_values=target.model_kwargs.get("past_key_values"),
            judge_stats=stats,
        )


def _block(draft: Draft, seen: Any, scores: Tensor, do_sample: bool) -> Block:
    """All that is known of the block; sampling adds its random numbers."""
    return Block(
        draft_tokens=draft.tokens,
        target_logits=seen.logits,
        hidden=seen.hidden,
        draft_logits=draft.logits,
        target_scores=scores,
        draft_scores=draft.scores,
        uniforms=torch.rand(draft.tokens.shape, device=draft.tokens.device) if do_sample else None,
    )


def _replacements(block: Block, verdict: Verdict, sources: list[Source], start: int) -> list[Replacement]:
    """The tokens of a block that stand only by the rule; costs nothing where there are none."""
    at = [index for index, source in enumerate(sources) if source is Source.JUDGED]
    if not at:
        return []
    log_p = block.p_scores[:, :-1].float().log_softmax(-1)
    chosen, drafted = block.target_choice[0].tolist(), block.draft_tokens[0].tolist()
    p = token_log_probs(log_p, block.draft_tokens).exp()[0].tolist()
    judged = None if verdict.opinion.probability is None else verdict.opinion.probability[0].tolist()
    return [Replacement(start + i, chosen[i], drafted[i], p[i], None if judged is None else judged[i]) for i in at]


def _eos_token_ids(config: GenerationConfig) -> frozenset[int]:
    eos = config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else [int(token) for token in eos])


def _is_ordinary_draft(draft: PreTrainedModel, config: GenerationConfig) -> bool:
    """Whether the draft is a causal LM to be stepped token by token (not an assistant head of another kind)."""
    special = type(draft).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))
    return not special and getattr(config, "speculation_type", None) is None and not getattr(config, "use_mtp", False)
