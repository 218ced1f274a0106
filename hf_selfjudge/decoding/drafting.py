"""Where the drafted tokens come from.

`DraftModelGenerator` steps a draft model with a cache of its own (no nested `generate`); every other transformers
drafter (prompt lookup, early exit, other tokenizers, multi-token prediction) works through `StockDrafter`, one row at a
time.
Knows nothing of verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator, CandidateGenerator

from ..engine.kernels import greedy
from .cached_model import CachedModel
from .draft_length import AdaptiveLength, FixedLength, HeuristicLength
from .processing import process_step
from .static_model import StaticModel
from .texts import Texts

SCHEDULES = ("constant", "heuristic", "heuristic_transient", "adaptive")


@dataclass(frozen=True)
class DraftSettings:
    """How many tokens to draft. Explicit settings win over the draft's generation config."""

    num_assistant_tokens: int = 20
    """gamma, the tokens of a block (the starting value under the heuristic schedules)."""
    num_assistant_tokens_schedule: str = "constant"
    """transformers' schedules: constant; heuristic (+2 after a fully accepted block, else -1; kept for the next call);
    heuristic_transient (the same, forgotten after the call). Ours: adaptive (as many as pay, at most gamma)."""
    assistant_confidence_threshold: float = 0.0
    """End the block at a token the draft gives less probability than this; 0 keeps gamma fixed."""

    def __post_init__(self) -> None:
        gamma = self.num_assistant_tokens
        if not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 1:
            raise ValueError(f"num_assistant_tokens is {gamma!r}, expected an int >= 1.")
        if self.num_assistant_tokens_schedule not in SCHEDULES:
            raise ValueError(
                f"num_assistant_tokens_schedule is {self.num_assistant_tokens_schedule!r}, expected one of "
                f"{', '.join(SCHEDULES)}."
            )
        confidence = self.assistant_confidence_threshold
        if not 0.0 <= confidence < 1.0:
            raise ValueError(f"assistant_confidence_threshold is {confidence!r}, expected a number in [0, 1).")

    @classmethod
    def resolve(cls, explicit: dict[str, Any], call: GenerationConfig, draft: PreTrainedModel | None) -> DraftSettings:
        """Explicit settings first, then what the call's config changes from transformers' defaults, then the draft's.

        transformers fills the call's config with its defaults (gamma 20, confidence 0.4), so a value equal to the
        default says nothing. The confidence default is not taken over: unless asked for, gamma is fixed.
        """
        defaults = call._get_default_generation_params()
        values = {}
        for name in cls.__dataclass_fields__:
            own = getattr(draft.generation_config, name, None) if draft is not None else None
            candidates = [explicit.get(name), getattr(call, name, None), own]
            chosen = [v for i, v in enumerate(candidates) if v is not None and (i == 0 or v != defaults.get(name))]
            if chosen:
                values[name] = chosen[0]
        return cls(**values)


@dataclass(frozen=True)
class Draft:
    """A proposed block; raw logits and processed scores as in `Block`, None where the drafter has no distribution."""

    tokens: Tensor  # (rows, gamma)
    lengths: Tensor  # (rows,): tokens drafted for each row; what stands behind them is filling
    logits: Tensor | None = None  # (rows, gamma, vocab)
    scores: Tensor | None = None  # (rows, gamma, vocab)


def draft_length(settings: DraftSettings, watches: bool, longest: int | None = None) -> FixedLength:
    """The length of blocks under a schedule.

    Args:
        settings: of the drafts.
        watches: an adaptive one may look at each token while drafting.
        longest: bounds a schedule that grows.
    """
    gamma, schedule = settings.num_assistant_tokens, settings.num_assistant_tokens_schedule
    if schedule == "constant":
        return FixedLength(gamma)
    return AdaptiveLength(gamma, watches) if schedule == "adaptive" else HeuristicLength(gamma, longest)


class Drafter(Protocol):
    """Proposes blocks and hears how they fared."""

    def propose(self, texts: Texts, budgets: list[int], target: Any) -> Draft:
        """Draft at most `budgets[row]` tokens after each text."""
        ...

    def observe(
        self, texts: Texts, scores: Tensor, accepted: list[int], drafted: list[int], seconds: tuple[float, float]
    ) -> None:
        """Learn how many of each row's drafted tokens were accepted, leading to `texts`, and what drafting and
        verifying them took.
        """
        ...

    def select(self, rows: list[int]) -> None:
        """Go on with some of the rows."""
        ...

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Go on with some of the rows, and with new texts of this left padding."""
        ...

    def finish(self) -> None:
        """The call is over."""
        ...


class DraftModelGenerator(CandidateGenerator):
    """Drafts with a model that shares the target's vocabulary, one forward per token, on its own KV cache."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: DraftSettings,
        vocab_size: int,
        logits_processor: LogitsProcessorList,
        do_sample: bool = False,
        eos_token_ids: frozenset[int] = frozenset(),
        cached: CachedModel | StaticModel | None = None,
        length: FixedLength | None = None,
        keeps_logits: bool = True,
    ) -> None:
        self.model = model
        self._keeps_logits = keeps_logits  # many rows of a large vocabulary: only if somebody reads them
        self.settings = settings
        self.length = length or draft_length(settings, watches=model.device.type != "cuda")
        self._vocab_size = vocab_size
        self._processors = logits_processor
        self._do_sample = do_sample
        self._eos_token_ids = torch.tensor(sorted(eos_token_ids), dtype=torch.long, device=model.device)
        self._cached = CachedModel(model, [0], vocab_size) if cached is None else cached
        # ending a block early needs a look at each token: on a GPU that costs more than the drafts it saves
        watches = self.length.watches or settings.assistant_confidence_threshold > 0.0
        self._looks = model.device.type != "cuda" or watches
        self._confidences: list[list[float]] = []

    @property
    def gamma(self) -> int:
        """Most tokens of the next block."""
        return self.length.gamma

    def propose(self, texts: Texts, budgets: list[int], target: Any = None) -> Draft:
        """Draft until gamma, the budget, or a row's end or a token the draft is unsure of; go on while any row does."""
        device, texts = texts.device, texts.to(self.model.device)
        tokens = torch.empty((len(texts), 0), dtype=torch.long, device=self.model.device)
        logits: list[Tensor] = []
        scores: list[Tensor] = []
        most = [max(0, min(self.gamma, budget)) for budget in budgets]
        self._confidences = [[] for _ in budgets]
        lengths = torch.tensor(most).to(self.model.device, non_blocking=True)
        for step in range(max(most)):
            read = self._cached.extend(tokens[:, -1:]) if step else self._cached.read(texts, keep=1)
            raw = self._fit_vocabulary(read[:, -1])
            processed = process_step(self._processors, texts, tokens, raw)
            chosen = self._choose(processed)
            tokens = torch.cat([tokens, chosen], dim=1)
            if self._keeps_logits:
                logits.append(raw)
                scores.append(processed)
            if self._looks:
                lengths = torch.where(self._closes(chosen, processed), lengths.clamp(max=step + 1), lengths)
                if int(lengths.max()) <= step + 1 or not self._pays(chosen, processed, lengths, step):
                    lengths = lengths.clamp(max=step + 1)
                    break
        if not self._looks:
            lengths = torch.minimum(lengths, self._until_end(tokens))
        lengths = lengths.to(device)
        if not logits:
            return Draft(tokens.to(device), lengths)
        raw_logits = torch.stack(logits, dim=1).to(device)
        return Draft(
            tokens.to(device),
            lengths,
            raw_logits,
            torch.stack(scores, dim=1).to(device) if self._processors else raw_logits,
        )

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """transformers' interface: the sequence with the drafted tokens behind it, and their scores."""
        self._cached.forget([input_ids.shape[1] - 1])
        draft = self.propose(Texts(input_ids), [self.gamma])
        return torch.cat([input_ids, draft.tokens], dim=1), draft.scores

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """transformers' interface: adapt gamma."""
        self.observe(Texts(input_ids), scores, [num_matches], [scores.shape[1] - 1])

    def observe(
        self,
        texts: Texts,
        scores: Tensor,
        accepted: list[int],
        drafted: list[int],
        seconds: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Forget what the target rejected (the last token is read next), and adapt gamma if a schedule asks for it."""
        self._cached.forget([length - 1 for length in texts.lengths])
        self.length.observe(drafted, accepted, seconds, self._confidences)

    def select(self, rows: list[int]) -> None:
        """Go on with some of the rows."""
        self._cached.select(rows)

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Go on with some of the rows, and with new texts of this left padding."""
        self._cached.renew(rows, padding)

    def finish(self) -> None:
        """Leave gamma in the draft's config for the next call, as transformers' heuristic schedule does."""
        self._cached.finish()
        if self.settings.num_assistant_tokens_schedule == "heuristic":
            self.model.generation_config.num_assistant_tokens = self.gamma

    def _fit_vocabulary(self, logits: Tensor) -> Tensor:
        """Vocabularies padded to different sizes: cut what the target lacks, rule out what the draft lacks."""
        missing = self._vocab_size - logits.shape[-1]
        return logits if missing == 0 else torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))

    def _choose(self, scores: Tensor) -> Tensor:
        """The next drafted token of each row. (rows, vocab) -> (rows, 1)"""
        if self._do_sample:
            return torch.multinomial(scores.softmax(dim=-1), num_samples=1)
        return greedy(scores)

    def _pays(self, tokens: Tensor, scores: Tensor, lengths: Tensor, step: int) -> bool:
        """Whether to go on behind the tokens just drafted. (rows, 1), (rows, vocab), (rows,)"""
        if not self.length.watches:
            return True
        confidences = scores.softmax(dim=-1).gather(-1, tokens)[:, 0].tolist()
        goes = (lengths > step + 1).tolist()
        for row, confidence in zip(self._confidences, confidences, strict=True):
            if len(row) == step:
                row.append(confidence)
        return self.length.goes_on([row for row, open_ in zip(self._confidences, goes, strict=True) if open_])

    def _until_end(self, tokens: Tensor) -> Tensor:
        """How many tokens of each row there are up to its first end-of-sequence token. (rows, steps) -> (rows,)"""
        steps = tokens.shape[1]
        ends = (tokens[:, :, None] == self._eos_token_ids).any(dim=-1)
        places = torch.arange(1, steps + 1, device=tokens.device)
        return torch.where(ends, places, steps).amin(dim=-1) if steps else torch.zeros_like(tokens.sum(-1))

    def _closes(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Which rows need no further draft, from their last token and its scores.

        (rows, 1), (rows, vocab) -> (rows,) bool
        """
        closes = (tokens == self._eos_token_ids).any(dim=-1)
        threshold = self.settings.assistant_confidence_threshold
        if threshold > 0.0:
            closes |= scores.softmax(dim=-1).gather(-1, tokens)[:, 0] < threshold
        return closes


class StockDrafter:
    """Any of transformers' own candidate generators; they take one row."""

    def __init__(self, generator: CandidateGenerator, settings: DraftSettings) -> None:
        self.generator = generator
        self._accepted = 0
        self._first = True
        if isinstance(generator, AssistedCandidateGenerator):  # these read the assistant's own config only
            generator.num_assistant_tokens = settings.num_assistant_tokens
            for config in (generator.assistant_generation_config, generator.generation_config):
                config.num_assistant_tokens_schedule = settings.num_assistant_tokens_schedule
                config.assistant_confidence_threshold = settings.assistant_confidence_threshold

    def propose(self, texts: Texts, budgets: list[int], target: Any) -> Draft:
        """The generator's candidates, cut to the budget."""
        input_ids, (budget,) = texts[0], budgets
        extra: dict[str, Any] = {}
        if self.generator.requires_model_outputs:
            extra = {
                "model_kwargs": target.model_kwargs,
                "model_outputs": target.outputs,
                "is_first_iteration": self._first,
                "n_last_matches": self._accepted,
            }
        candidates, scores = self.generator.get_candidates(input_ids, **extra)
        self._first = False
        tokens = candidates[:, input_ids.shape[1] :][:, :budget].to(input_ids.device)
        if scores is not None:
            scores = scores[:, : tokens.shape[1]].to(input_ids.device).float()
        # only processed scores are handed out, so they stand for the raw logits too
        return Draft(tokens, torch.tensor([tokens.shape[1]], device=tokens.device), scores, scores)

    def observe(
        self, texts: Texts, scores: Tensor, accepted: list[int], drafted: list[int], seconds: tuple[float, float]
    ) -> None:
        """Tell the generator how its candidates fared."""
        self._accepted = accepted[0]
        self.generator.update_candidate_strategy(texts[0], scores, accepted[0])

    def select(self, rows: list[int]) -> None:
        """A single row is never dropped before the end."""

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Nobody waits for a single row's place."""

    def finish(self) -> None:
        """Nothing to do."""
