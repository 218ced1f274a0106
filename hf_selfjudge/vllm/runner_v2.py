"""The judge on vLLM's V2 model runner, the one that GPU users get: what it taps, and where it edits.

One step there: `execute_model` leaves the target's hidden states in `execute_model_state`; `sample_tokens` takes one of
them per logits row (the token before the drafts, then each draft of each request), computes the logits, writes grammar
masks into them and calls the rejection sampler. That one asks the sampler for the scores after all logits processors,
once per chunk of requests, and accepts. The judge stands between these two: approved rows become one-hot at the draft
token, and vLLM's own kernels accept. Steps without drafts never come here.

Replaced are objects of this runner, never vLLM's classes: its rejection sampler (a subclass, which sees the sampler
through a view), its structured outputs worker (a view that keeps the logits as they were before a mask); added is a
logits processor of the official V2 interface, which changes no logits and remembers `extra_args`.

What depends on vLLM's version (run with 0.31 and 0.32), all checked by `V2Tap` or at each step:

- `execute_model_state.hidden_states` (after the final norm) and `.input_batch`; of the batch `logits_indices` in the
  order of the logits, `cu_num_logits` with its host copy, `req_ids`;
- the parameters of `RejectionSampler.__call__` (0.31 has no `invalid_drafts`) and of `Sampler.apply_sampling_params`,
  which the former calls for consecutive requests, and which may return the raw logits themselves;
- drafts that must not stand: negative ids (placeholders), or marked in `invalid_drafts` (behind a grammar's end);
- raw draft logits: `speculator.draft_logits` by request slot and draft step with draft_sample_method "probabilistic";
  otherwise what `speculator.model.compute_logits` returns, for the slots and the step that the speculator says.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import ExecuteModelState
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from .approval import Approval, Approver, DraftRows
from .requests import Requests
from .timing import Timing
from .versions import require_attributes, require_parameters
from .views_v2 import SCORES_ARGUMENTS, DraftLogits, ExtraArgs, GrammarView, SamplerView

_STATE = ("hidden_states", "input_batch")
_BATCH = ("req_ids", "logits_indices", "cu_num_logits", "cu_num_logits_np")


@dataclass
class _Step:
    """One call of the rejection sampler, and how far into the batch its chunks have come."""

    batch: Any  # vLLM's InputBatch
    hidden: Tensor  # (drafts + requests, hidden_size)
    logits: Tensor  # (drafts + requests, vocab): before grammar masks
    draft_logits: Tensor | None  # (request slots, draft steps, vocab)
    invalid: Tensor | None  # (drafts + requests,) bool: at the row that reads an invalid draft
    rows: int = 0
    requests: int = 0
    approvals: list[Approval] = field(default_factory=list)


@dataclass(frozen=True)
class _Chunk:
    """Consecutive requests of a step, as vLLM verifies them."""

    rows: slice
    requests: slice
    lengths: Tensor  # (requests,): drafts of each
    starts: Tensor  # (requests,)
    predicting: Tensor  # (drafts,): the row, in the chunk, that predicts each draft; the row behind it reads the draft


class V2Tap:
    """Feeds the approver with the steps of a V2 model runner.

    Args:
        runner: vLLM's `GPUModelRunner` of `v1.worker.gpu` (or the CPU's, which is one), with its models loaded.
        approver: the rule with its counters.
        requests: thetas and slots of the requests.
        timing: where the judge's time is added up.
    """

    def __init__(self, runner: Any, approver: Approver, requests: Requests, timing: Timing) -> None:
        _check(runner)
        self._runner, self._approver, self._requests, self._timing = runner, approver, requests, timing
        self._state: Any = None
        self._step: _Step | None = None
        self._extra_args = ExtraArgs(runner.max_num_reqs)
        self._grammar = GrammarView(runner.structured_outputs_worker)
        self._draft_logits: DraftLogits | None = None
        if approver.needs_draft_logits and runner.speculator.draft_logits is None:
            self._draft_logits = DraftLogits(runner.speculator, runner.max_num_reqs)
        runner.sampler.logits_processors.append(self._extra_args)
        runner.structured_outputs_worker = self._grammar
        runner.rejection_sampler = JudgedRejectionSampler(self, runner)

    def before_sampling(self, grammar_output: Any) -> None:
        """Keep what the step knows; `sample_tokens` is about to consume it."""
        self._state = self._runner.execute_model_state
        self._grammar.raw = None

    def after_sampling(self) -> None:
        """Forget the step."""
        self._state, self._step, self._grammar.raw = None, None, None

    def begin(self, logits: Tensor, batch: Any, draft_logits: Tensor | None, invalid: Tensor | None) -> None:
        """The rejection sampler starts on a step."""
        state, raw = self._state, logits if self._grammar.raw is None else self._grammar.raw
        if state is None or state.input_batch is not batch or batch.logits_indices.shape[0] != logits.shape[0]:
            raise RuntimeError(
                "vLLM verifies another batch than the one its forward left behind (sharded or compacted sampling?); "
                "selfjudge cannot tell which hidden states belong to it. Switch that option off."
            )
        self._requests.update(batch.req_ids, self._extra_args_of)
        if self._draft_logits is not None:
            draft_logits = self._draft_logits.cache
        self._step = _Step(batch, state.hidden_states[batch.logits_indices], raw, draft_logits, invalid)

    def end(self, sampled: Tensor) -> None:
        """It has accepted: count what stands, each request's tokens without the target's own. (requests,)"""
        step = self._step
        if step is None or step.rows != step.logits.shape[0]:
            raise RuntimeError("vLLM accepted drafts that selfjudge has not seen; this is not a tested version.")
        first = 0
        for approval in step.approvals:
            part = slice(first, first + approval.lengths.shape[0])
            self._approver.count(approval, sampled[part] - 1, self._requests.slots[part])
            first = part.stop
        self._step = None

    def edited(self, scores: Tensor, inputs: Tensor, slots: Tensor, places: Tensor, requests: int) -> Tensor:
        """The scores of the next requests with approved rows one-hot; not in place, since they may be the raw logits.

        Args:
            scores: after all logits processors. (rows, vocab)
            inputs: the token that each row reads, negative for placeholders. (rows,)
            slots: the request slot of each row. (rows,)
            places: each row's place in its request. (rows,)
            requests: how many requests these rows are of.
        """
        step = self._step
        if step is None:
            raise RuntimeError("vLLM asked for scores outside a verification step, which no tested version does.")
        chunk = _next_chunk(step, scores.shape[0], requests)
        blind = self._approver.needs_draft_logits and step.draft_logits is None  # placeholders before the first draft
        if blind or not self._requests.relaxes:
            nobody, nothing = torch.zeros_like(chunk.predicting, dtype=torch.bool), torch.zeros_like(chunk.lengths)
            step.approvals.append(Approval(nobody, nothing, chunk.lengths, chunk.starts))
            return scores
        with self._timing.phase("judge"):
            draft_rows = scores[chunk.predicting]
            at = (slots[chunk.predicting].long(), places[chunk.predicting].long())
            step.approvals.append(self._approver.approve(self._rows(step, chunk, draft_rows, inputs, at)))
            return scores.index_copy(0, chunk.predicting, draft_rows)

    def _rows(self, step: _Step, chunk: _Chunk, scores: Tensor, inputs: Tensor, at: tuple[Tensor, Tensor]) -> DraftRows:
        """A chunk's drafts in the approver's form; `at`: request slot and draft step of each."""
        bounds = step.batch.cu_num_logits_np[chunk.requests.start : chunk.requests.stop + 1]
        draft_logits = None
        if self._approver.needs_draft_logits and step.draft_logits is not None:
            draft_logits = step.draft_logits[at][:, : scores.shape[1]]
        return DraftRows(
            draft_tokens=inputs[chunk.predicting + 1],
            counts=(bounds[1:] - bounds[:-1] - 1).tolist(),
            hidden=step.hidden[chunk.rows],
            logits=step.logits[chunk.rows],
            scores=scores,
            thetas=self._requests.thetas[chunk.requests],
            lengths=chunk.lengths,
            draft_logits=draft_logits,
            protected=None if step.invalid is None else step.invalid[chunk.rows][chunk.predicting + 1],
        )

    def _extra_args_of(self, request: str) -> Any:
        return self._extra_args.by_slot[self._runner.req_states.req_id_to_index[request]]


class JudgedRejectionSampler(RejectionSampler):
    """vLLM's rejection sampler on scores that the judge has seen."""

    def __init__(self, tap: V2Tap, runner: Any) -> None:
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        self.sampler = SamplerView(runner.sampler, tap.edited)
        self._tap = tap

    def __call__(self, logits: Tensor, input_batch: Any, draft_logits: Any = None, invalid_drafts: Any = None) -> Any:
        """Stock verification between the tap's two notes."""
        self._tap.begin(logits, input_batch, draft_logits, invalid_drafts)
        known = () if invalid_drafts is None else (invalid_drafts,)  # 0.31 has no such argument, and never gives it
        output = super().__call__(logits, input_batch, draft_logits, *known)
        self._tap.end(output.num_sampled)
        return output


def _next_chunk(step: _Step, rows: int, requests: int) -> _Chunk:
    """Move a step on by some requests."""
    taken = slice(step.rows, step.rows + rows), slice(step.requests, step.requests + requests)
    step.rows, step.requests = taken[0].stop, taken[1].stop
    bounds = step.batch.cu_num_logits[taken[1].start : taken[1].stop + 1].long()
    lengths = bounds[1:] - bounds[:-1] - 1
    starts = lengths.cumsum(0) - lengths
    drafts = torch.arange(rows - requests, device=lengths.device)
    # each request has one row more than drafts, so a draft's row is its number plus that of its request
    predicting = drafts + torch.searchsorted(starts, drafts, right=True) - 1
    return _Chunk(*taken, lengths, starts, predicting)


def _check(runner: Any) -> None:
    """Refuse a runner that is not as in the tested versions, or that samples in a way the judge cannot follow."""
    names = ("rejection_sampler", "sampler", "structured_outputs_worker", "speculator", "execute_model_state")
    more = ("req_states", "max_num_reqs", "batch_sharder", "adaptive_verification", "speculative_config", "device")
    require_attributes(runner, (*names, *more), "V2 model runner")
    require_attributes(runner.req_states, ("req_id_to_index",), "request states")
    require_attributes(runner.speculator, ("draft_logits",), "speculator")
    require_attributes(runner.structured_outputs_worker, ("apply_grammar_bitmask",), "structured outputs worker")
    for what, expected in ((runner.rejection_sampler, RejectionSampler), (runner.sampler, Sampler)):
        if type(what) is not expected:
            raise RuntimeError(f"This runner has a {type(what).__name__}, expected vLLM's own {expected.__name__}.")
    if not isinstance(getattr(runner.sampler, "logits_processors", None), list):
        raise RuntimeError("vLLM's V2 sampler has no list of logits processors; this is not a tested version.")
    for kind, fields in ((ExecuteModelState, _STATE), (InputBatch, _BATCH)):
        missing = [name for name in fields if name not in kind.__annotations__]
        if missing:
            raise RuntimeError(f"vLLM's {kind.__name__} has no {', '.join(missing)}; this is not a tested version.")
    if runner.batch_sharder is not None:
        raise ValueError("selfjudge does not work with enable_batch_sharded_sampling; switch it off.")
    ranks = getattr(runner.parallel_config, "prefill_context_parallel_size", 1)
    if ranks > 1:
        raise ValueError(f"selfjudge does not work with prefill_context_parallel_size={ranks}; it needs 1.")
    verify = ("self", "logits", "input_batch", "draft_logits", "invalid_drafts")
    found = tuple(inspect.signature(RejectionSampler.__call__).parameters)
    require_parameters(RejectionSampler.__call__, verify[: max(4, len(found))], "RejectionSampler.__call__")
    scores = ("self", *SCORES_ARGUMENTS, "skip_top_k_top_p")
    require_parameters(Sampler.apply_sampling_params, scores, "Sampler.apply_sampling_params")
