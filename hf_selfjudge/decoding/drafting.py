"""Where the drafted tokens come from.

`DraftModelGenerator` steps a draft model with a cache of its own (no nested `generate`); every other transformers
drafter (prompt lookup, early exit, other tokenizers, multi-token prediction) works through `StockDrafter`.
Knows nothing of verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

SCHEDULES = ("constant", "heuristic", "heuristic_transient")


@dataclass(frozen=True)
class DraftSettings:
    """How many tokens to draft. Explicit settings win over the draft's generation config."""

    num_assistant_tokens: int = 20
    """gamma, the tokens of a block (the starting value under the heuristic schedules)."""
    num_assistant_tokens_schedule: str = "constant"
    """transformers' schedules: constant; heuristic (+2 after a fully accepted block, else -1; kept for the next call);
    heuristic_transient (the same, forgotten after the call)."""
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

    tokens: Tensor  # (1, gamma)
    logits: Tensor | None = None  # (1, gamma, vocab)
    scores: Tensor | None = None  # (1, gamma, vocab)


class Drafter(Protocol):
    """Proposes blocks and hears how they fared."""

    def propose(self, input_ids: Tensor, budget: int, target: Any) -> Draft:
        """Draft at most `budget` tokens after `input_ids`."""
        ...

    def observe(self, input_ids: Tensor, scores: Tensor, accepted: int, drafted: int) -> None:
        """Learn that `accepted` of the last block's tokens were accepted, leading to `input_ids`."""
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
        attention_mask: Tensor | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.gamma = settings.num_assistant_tokens
        self._vocab_size = vocab_size
        self._own_vocab_size = model.get_input_embeddings().weight.shape[0]
        self._processors = logits_processor
        self._do_sample = do_sample
        self._eos_token_ids = eos_token_ids
        self._prompt_mask = attention_mask if attention_mask is not None and not bool(attention_mask.all()) else None
        self._cache = draft_cache(model)
        self._cached = 0  # positions in the cache; all of them agree with the accepted text
        self._keep_last = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}

    def propose(self, input_ids: Tensor, budget: int, target: Any = None) -> Draft:
        """Draft until gamma, the budget, the end of the text or a token the draft is unsure of."""
        device = input_ids.device
        sequence = input_ids.to(self.model.device)
        self._rewind(sequence.shape[1] - 1)
        tokens, logits, scores = [], [], []
        for _ in range(min(self.gamma, budget)):
            raw = self._step(sequence)
            processed = self._processors(sequence, raw.clone()) if self._processors else raw
            token = self._choose(processed)
            sequence = torch.cat([sequence, token], dim=1)
            tokens.append(token)
            logits.append(raw)
            scores.append(processed)
            if self._ends_block(int(token), processed):
                break
        if not tokens:
            return Draft(input_ids[:, :0])
        raw_logits = torch.stack(logits, dim=1).to(device)
        return Draft(
            torch.cat(tokens, dim=1).to(device),
            raw_logits,
            torch.stack(scores, dim=1).to(device) if self._processors else raw_logits,
        )

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """transformers' interface: the sequence with the drafted tokens behind it, and their scores."""
        draft = self.propose(input_ids, self.gamma)
        return torch.cat([input_ids, draft.tokens], dim=1), draft.scores

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """transformers' interface: adapt gamma."""
        self.observe(input_ids, scores, num_matches, scores.shape[1] - 1)

    def observe(self, input_ids: Tensor, scores: Tensor, accepted: int, drafted: int) -> None:
        """Forget what the target rejected, and adapt gamma if a schedule asks for it."""
        self._rewind(input_ids.shape[1] - 1)
        if self.settings.num_assistant_tokens_schedule != "constant":
            self.gamma = self.gamma + 2 if accepted == drafted else max(1, self.gamma - 1)

    def finish(self) -> None:
        """Leave gamma in the draft's config for the next call, as transformers' heuristic schedule does."""
        if self.settings.num_assistant_tokens_schedule == "heuristic":
            self.model.generation_config.num_assistant_tokens = self.gamma

    def _rewind(self, length: int) -> None:
        """Cut the cache to the accepted text without its last token, which the next step reads."""
        if self._cached > length:
            self._cache.crop(length - self._cached)
            self._cached = length

    def _step(self, sequence: Tensor) -> Tensor:
        """Read what the cache has not seen; the next token's logits over the target's vocabulary. (1, vocab) float32"""
        new = sequence[:, self._cached :].clamp(max=self._own_vocab_size - 1)
        positions = {}
        if self._prompt_mask is not None:
            mask = torch.nn.functional.pad(
                self._prompt_mask.to(sequence.device), (0, sequence.shape[1] - self._prompt_mask.shape[1]), value=1
            )
            position_ids = (mask.cumsum(-1) - 1).clamp(min=0)[:, self._cached :]
            positions = {"attention_mask": mask, "position_ids": position_ids}
        output = self.model(input_ids=new, past_key_values=self._cache, use_cache=True, **self._keep_last, **positions)
        self._cached = sequence.shape[1]
        logits = output.logits[:, -1].float()
        # vocabularies padded to different sizes: cut what the target lacks, rule out what the draft lacks
        missing = self._vocab_size - logits.shape[-1]
        if missing == 0:
            return logits
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))

    def _choose(self, scores: Tensor) -> Tensor:
        """The next drafted token. (1, vocab) -> (1, 1)"""
        if self._do_sample:
            return torch.multinomial(scores.softmax(dim=-1), num_samples=1)
        return scores.argmax(dim=-1, keepdim=True)

    def _ends_block(self, token: int, scores: Tensor) -> bool:
        if token in self._eos_token_ids:
            return True
        threshold = self.settings.assistant_confidence_threshold
        return threshold > 0.0 and float(scores.softmax(dim=-1)[0, token]) < threshold


class StockDrafter:
    """Any of transformers' own candidate generators."""

    def __init__(self, generator: CandidateGenerator) -> None:
        self.generator = generator
        self._accepted = 0
        self._first = True

    def propose(self, input_ids: Tensor, budget: int, target: Any) -> Draft:
        """The generator's candidates, cut to the budget."""
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
        return Draft(tokens, scores, scores)

    def observe(self, input_ids: Tensor, scores: Tensor, accepted: int, drafted: int) -> None:
        """Tell the generator how its candidates fared."""
        self._accepted = accepted
        self.generator.update_candidate_strategy(input_ids, scores, accepted)

    def finish(self) -> None:
        """Nothing to do."""


def draft_cache(model: PreTrainedModel) -> DynamicCache:
    """A cache that can be cut back by any number of tokens.

    Layers with a sliding window keep their whole past here (the mask still limits what they see), which makes every cut
    exact; only linear-attention models need the cache layers of their config.
    """
    layer_types = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if all(kind in ("full_attention", "sliding_attention", "chunked_attention") for kind in layer_types):
        return DynamicCache()
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    return cache
