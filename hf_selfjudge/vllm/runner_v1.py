"""The judge on vLLM's V1 model runner: what it taps, and the one method of the rejection sampler it overrides.

Between `execute_model` and `sample_tokens` the runner holds the hidden states and logits of the step. Row r predicts
draft r and row r + 1 was computed from it, so the judge's input is all there. Acceptance, recovered and bonus tokens
stay stock: only approved rows are edited, after all logits processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler, apply_sampling_constraints

from .approval import Approval, Approver, DraftRows
from .requests import Requests
from .timing import Timing
from .versions import check_hidden, require_attributes, require_parameters


@dataclass
class _Step:
    """What the runner knows between its forward and its sampling."""

    hidden: Tensor  # (drafts + requests, hidden_size)
    logits: Tensor  # (drafts + requests, vocab): before grammar masks
    approval: Approval | None = None


class V1Tap:
    """Feeds the approver with the steps of a V1 model runner.

    Args:
        runner: vLLM's `GPUModelRunner` (or the CPU's, which is one), with its models loaded.
        approver: the rule with its counters.
        requests: thetas and slots of the requests.
        timing: where the judge's time is added up.
    """

    def __init__(self, runner: Any, approver: Approver, requests: Requests, timing: Timing) -> None:
        _check(runner)
        self._runner, self._approver, self._requests, self._timing = runner, approver, requests, timing
        self._step: _Step | None = None
        self._hidden_checked = False
        self._drafts = True  # whether this step will draft
        self._void: set[str] = set()  # requests whose next drafts are a filling
        self._draft_logits = DraftLogits(runner.drafter) if approver.needs_draft_logits else None
        runner.rejection_sampler = JudgedRejectionSampler(self, runner)

    def before_sampling(self, grammar_output: Any) -> None:
        """Keep what the step knows; `sample_tokens` is about to consume it."""
        state = self._runner.execute_model_state
        self._step = None
        if self._draft_logits is not None:
            self._draft_logits.turn()
        if state is not None:
            # vLLM asks itself the same: without room for all drafts of the batch it fills in token 0, which is no draft
            self._drafts = self._runner._input_fits_in_drafter(state.spec_decode_common_attn_metadata)
        if state is None or state.spec_decode_metadata is None:
            return
        if not self._hidden_checked:
            rows = slice(0, 4)
            check_hidden(state.sample_hidden_states[rows], state.logits[rows], self._runner.model.compute_logits)
            self._hidden_checked = True
        # the grammar's mask is written into the logits, and the judge reads them as they were
        logits = state.logits if grammar_output is None else state.logits.clone()
        self._step = _Step(state.sample_hidden_states, logits)

    def after_sampling(self) -> None:
        """Forget the step, and note for which requests the drafts of the next one were made."""
        self._step = None
        batch = list(self._runner.input_batch.req_ids)
        if self._drafts:
            self._void.difference_update(batch)
        else:
            self._void = {*batch, *(request for request in self._void if request in self._runner.requests)}
        if self._draft_logits is not None:
            self._draft_logits.made_for(batch)

    def approve(self, scores: Tensor, sampling_metadata: Any, metadata: Any) -> None:
        """Edit the processed scores of approved drafts in place. (drafts, vocab)"""
        step, runner = self._step, self._runner
        if step is None:  # vLLM's own warm-up
            return
        self._requests.update(runner.input_batch.req_ids, self._extra_args)
        with self._timing.phase("judge"):
            rows = self._rows(step, scores, sampling_metadata, metadata)
            step.approval = self._approver.approve(rows, ask=self._requests.relaxes)

    def count(self, sampled: Tensor) -> None:
        """Count what stands after stock acceptance. (requests, drafts + 1), filled with placeholders"""
        if self._step is not None and self._step.approval is not None:
            accepted = (sampled != PLACEHOLDER_TOKEN_ID).sum(dim=1) - 1
            self._approver.count(self._step.approval, accepted, self._requests.slots)

    def _rows(self, step: _Step, scores: Tensor, sampling_metadata: Any, metadata: Any) -> DraftRows:
        """The step's drafts in the approver's form."""
        ends = metadata.cu_num_draft_tokens
        batch, counts = self._runner.input_batch.req_ids, metadata.num_draft_tokens
        draft_logits, protected = None, None
        if self._draft_logits is not None:
            draft_logits, protected = self._draft_logits.rows(batch, counts, scores)
        if self._void:
            void = [request in self._void for request, count in zip(batch, counts, strict=True) for _ in range(count)]
            fillings = torch.tensor(void, dtype=torch.bool).to(scores.device, non_blocking=True)
            protected = fillings if protected is None else protected | fillings
        return DraftRows(
            draft_tokens=metadata.draft_token_ids,
            counts=counts,
            hidden=step.hidden,
            logits=step.logits,
            scores=scores,
            thetas=self._requests.thetas,
            lengths=torch.diff(ends, prepend=ends.new_zeros(1)),
            draft_logits=draft_logits,
            protected=protected,
            final_scores=self._final_scores(scores, sampling_metadata, metadata),
        )

    def _final_scores(self, scores: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor | None:
        """The scores after temperature, top-k and top-p, which vLLM applies later; None where they change nothing."""
        cut = sampling_metadata.top_k is not None or sampling_metadata.top_p is not None
        if sampling_metadata.all_greedy or not (cut or self._approver.reads_scores):
            return None
        return apply_sampling_constraints(scores.clone(), metadata.cu_num_draft_tokens, sampling_metadata)

    def _extra_args(self, request: str) -> Any:
        params = self._runner.requests[request].sampling_params
        return None if params is None else params.extra_args


class JudgedRejectionSampler(RejectionSampler):
    """vLLM's rejection sampler, with the judge after its logits processors."""

    def __init__(self, tap: V1Tap, runner: Any) -> None:
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        self._tap = tap

    def forward(self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        """Stock verification, then counting."""
        output = super().forward(metadata, draft_probs, logits, sampling_metadata)
        self._tap.count(output.sampled_token_ids)
        return output

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor:
        """Stock processors, then the judge's edit."""
        scores = super().apply_logits_processors(logits, sampling_metadata, metadata)
        self._tap.approve(scores, sampling_metadata, metadata)
        return scores


class DraftLogits:
    """The draft model's raw logits behind the drafts that the next step verifies.

    vLLM throws them away after choosing the draft tokens, so this instance's `compute_logits` is listened to.
    """

    def __init__(self, drafter: Any) -> None:
        require_attributes(drafter, ("model",), "drafter")
        require_attributes(drafter.model, ("compute_logits",), "draft model")
        self._steps: list[Tensor] = []  # of the drafts being made, one per position: (requests, vocab)
        self._ready: list[Tensor] = []  # of the drafts being verified
        self._row_of: dict[str, int] = {}
        self._listens = False  # not to warm-ups and idle steps
        compute = drafter.model.compute_logits

        def listening(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            if self._listens:
                self._steps.append(logits.clone())  # sampled drafting divides them by the temperature in place
            return logits

        drafter.model.compute_logits = listening

    def turn(self) -> None:
        """The drafts made in the last step are now verified, and new ones will be made."""
        self._ready, self._steps, self._listens = self._steps, [], True

    def made_for(self, batch: list[str]) -> None:
        """The drafts just made are of these requests."""
        self._row_of, self._listens = {request: row for row, request in enumerate(batch)}, False

    def rows(self, batch: list[str], counts: list[int], scores: Tensor) -> tuple[Tensor, Tensor]:
        """The logits behind each draft, flat, and which drafts have none and so must not be relaxed.

        A request that was not in the last step brings older drafts, whose logits are gone.
        """
        row_of = self._row_of
        row, place, missing = [], [], []
        for request, count in zip(batch, counts, strict=True):
            known = request in row_of and count <= len(self._ready)
            row += [row_of.get(request, 0)] * count
            place += list(range(count)) if known else [0] * count
            missing += [not known] * count
        if not self._ready or not row_of:
            return torch.zeros_like(scores), torch.ones(scores.shape[0], dtype=torch.bool, device=scores.device)
        index = torch.tensor([row, place], dtype=torch.long).to(scores.device, non_blocking=True)
        steps = torch.stack(self._ready, dim=1)  # (requests, gamma, vocab)
        return steps[index[0], index[1]], torch.tensor(missing, dtype=torch.bool).to(scores.device, non_blocking=True)


def _check(runner: Any) -> None:
    """Refuse a runner that does not look as in the tested versions."""
    names = ("rejection_sampler", "sampler", "execute_model_state", "input_batch", "requests", "drafter", "model")
    others = ("speculative_config", "device", "_input_fits_in_drafter")
    require_attributes(runner, names + others, "V1 model runner")
    if type(runner.rejection_sampler) is not RejectionSampler:
        raise RuntimeError(
            f"This runner's rejection sampler is {type(runner.rejection_sampler).__name__}, expected vLLM's own."
        )
    forward = ("self", "metadata", "draft_probs", "logits", "sampling_metadata")
    require_parameters(RejectionSampler.forward, forward, "RejectionSampler.forward")
    processors = ("self", "logits", "sampling_metadata", "metadata")
    name = "RejectionSampler.apply_logits_processors"
    require_parameters(RejectionSampler.apply_logits_processors, processors, name)
