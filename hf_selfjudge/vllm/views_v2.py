"""What the tap of vLLM's V2 model runner listens through: views of the runner's objects that keep what they see.

None of them changes what vLLM computes but `SamplerView`, whose scores pass through the judge. What depends on vLLM's
version is listed in `runner_v2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor
from vllm.v1.worker.gpu.sample.sampler import Sampler

from .versions import require_attributes

SCORES_ARGUMENTS = (
    "logits",
    "expanded_idx_mapping",
    "idx_mapping",
    "idx_mapping_np",
    "pos",
    "input_ids",
    "expanded_local_pos",
    "seq_lens_upper_bound_np",
)
"""Of `Sampler.apply_sampling_params`, as its rejection sampler gives them."""


class SamplerView:
    """vLLM's sampler as its rejection sampler sees it: scores pass through the judge."""

    def __init__(self, sampler: Sampler, edited: Callable[..., Tensor]) -> None:
        self._sampler, self._edited = sampler, edited

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def apply_sampling_params(self, *args: Any) -> Tensor:
        """Stock scores, then the judge's edit; the arguments are `SCORES_ARGUMENTS`."""
        scores = self._sampler.apply_sampling_params(*args)
        named = dict(zip(SCORES_ARGUMENTS, args, strict=False))
        requests = len(named["idx_mapping_np"])
        return self._edited(
            scores, named["input_ids"], named["expanded_idx_mapping"], named["expanded_local_pos"], requests
        )


class GrammarView:
    """vLLM's structured outputs worker, which writes masks into the logits: keeps them as they were."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.raw: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def apply_grammar_bitmask(self, logits: Tensor, *args: Any, **kwargs: Any) -> None:
        """Mask as vLLM does, after taking a copy."""
        self.raw = logits.clone()
        self._worker.apply_grammar_bitmask(logits, *args, **kwargs)


class ExtraArgs(LogitsProcessor):
    """Remembers the `extra_args` of the request in each slot; changes no logits."""

    def __init__(self, slots: int) -> None:
        self.by_slot: list[dict[str, Any] | None] = [None] * slots

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take note of a request; its logits need no processing because of this."""
        self.by_slot[req_idx] = sampling_params.extra_args
        return False

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        """The logits as they are."""
        return logits


class DraftLogits:
    """The draft model's raw logits where vLLM drops them (greedy drafting), by request slot and draft step."""

    def __init__(self, speculator: Any, slots: int) -> None:
        names = ("model", "idx_mapping", "current_draft_step", "num_speculative_steps")
        require_attributes(speculator, names, "speculator")
        require_attributes(speculator.model, ("compute_logits",), "draft model")
        self.cache: Tensor | None = None  # (slots + 1, draft steps, vocab)
        compute = speculator.model.compute_logits

        def listening(*args: Any, **kwargs: Any) -> Tensor:
            logits = compute(*args, **kwargs)
            if self.cache is None:  # in vLLM's memory profiling
                # one more slot: dummy and padding rows say -1
                shape = (slots + 1, speculator.num_speculative_steps, logits.shape[1])
                self.cache = logits.new_zeros(shape)
            drafted = speculator.idx_mapping[: logits.shape[0]].long()
            # not by `cache[drafted, step]`, which would read the step's number on the host
            self.cache.index_put_((drafted, speculator.current_draft_step.expand_as(drafted)), logits)
            return logits

        speculator.model.compute_logits = listening
