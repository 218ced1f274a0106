"""The tap of vLLM's V2 model runner with a stand-in for vLLM: which rows it hands to the judge, and that no step waits.

Only the few names that `runner_v2` imports are stood in for, by classes that verify as vLLM does in greedy decoding.
"""

import sys
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.config import JudgeConfig
from hf_selfjudge.features import Block
from hf_selfjudge.rules import JudgeRule
from hf_selfjudge.verification import verify
from hf_selfjudge.vllm.approval import Approver
from hf_selfjudge.vllm.requests import Requests
from hf_selfjudge.vllm.timing import Timing

FEATURES = ("hidden", "previous_hidden", "log_p", "s_prefix", "entropy", "log_q", "kl_pq", "ahead_matches")

COUNTS = (5, 0, 3, 5, 1)
OFF_SLOT = 3


class Sampler:
    """Gives the raw logits back, as vLLM does where no request needs processing."""

    def __init__(self):
        self.logits_processors = []

    def apply_sampling_params(
        self,
        logits,
        expanded_idx_mapping,
        idx_mapping,
        idx_mapping_np,
        pos,
        input_ids,
        expanded_local_pos,
        seq_lens_upper_bound_np,
        skip_top_k_top_p=False,
    ):
        return logits


class InputBatch:
    """The fields that are read."""

    req_ids: list
    logits_indices: torch.Tensor
    cu_num_logits: torch.Tensor
    cu_num_logits_np: object


class ExecuteModelState:
    """The fields that are read."""

    hidden_states: torch.Tensor
    input_batch: InputBatch


class RejectionSampler:
    """Greedy acceptance, in chunks of two requests."""

    def __init__(self, sampler, speculative_config, device):
        self.sampler = sampler

    def __call__(self, logits, input_batch, draft_logits=None, invalid_drafts=None):
        bounds, found = input_batch.cu_num_logits_np, []
        for first in range(0, len(bounds) - 1, 2):
            last = min(first + 2, len(bounds) - 1)
            rows, requests = slice(int(bounds[first]), int(bounds[last])), slice(first, last)
            inputs = input_batch.input_ids[rows]
            scores = self.sampler.apply_sampling_params(
                logits[rows],
                input_batch.expanded_idx_mapping[rows],
                input_batch.idx_mapping[requests],
                input_batch.idx_mapping_np[requests],
                None,
                inputs,
                input_batch.expanded_local_pos[rows],
                None,
            )
            valid = inputs if invalid_drafts is None else inputs.masked_fill(invalid_drafts[rows], -1)
            aligned = scores.argmax(-1)[:-1] == valid[1:]
            for index in range(first, last):
                start, stop = int(bounds[index] - bounds[first]), int(bounds[index + 1] - bounds[first])
                found.append(aligned[start : stop - 1].long().cumprod(0).sum() + 1)
        return SimpleNamespace(num_sampled=torch.stack(found))


@pytest.fixture
def runner_v2(monkeypatch):
    """`hf_selfjudge.vllm.runner_v2` on the stand-ins."""
    gpu = "vllm.v1.worker.gpu"
    names = {
        f"{gpu}.sample.logits_processor": {"LogitsContext": object, "LogitsProcessor": object},
        f"{gpu}.sample.sampler": {"Sampler": Sampler},
        f"{gpu}.input_batch": {"InputBatch": InputBatch},
        f"{gpu}.model_runner": {"ExecuteModelState": ExecuteModelState},
        f"{gpu}.spec_decode.rejection_sampler": {"RejectionSampler": RejectionSampler},
    }
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    for name, content in names.items():
        vars(sys.modules[name]).update(content)
    ours = ("hf_selfjudge.vllm.runner_v2", "hf_selfjudge.vllm.views_v2")
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module(ours[0])
    for name in ours:
        sys.modules.pop(name, None)


def make_step(device, counts=COUNTS, hidden=64, vocabulary=512, steps=5):
    """One step of some requests: what the runner, its batch and the logits are."""
    rows = [count + 1 for count in counts]
    bounds = torch.tensor([0, *rows]).cumsum(0)
    total, requests = int(bounds[-1]), len(counts)
    generator = torch.Generator().manual_seed(0)
    index = torch.repeat_interleave(torch.arange(requests), torch.tensor(rows))
    batch = SimpleNamespace(
        req_ids=[f"request {number}" for number in range(requests)],
        num_draft_tokens=sum(counts),
        idx_mapping=torch.arange(requests).to(device),
        idx_mapping_np=torch.arange(requests).numpy(),
        expanded_idx_mapping=index.to(device),
        expanded_local_pos=(torch.arange(total) - bounds[index]).to(device),
        input_ids=torch.randint(vocabulary, (total,), generator=generator).to(device),
        logits_indices=torch.arange(total).flip(0).to(device),
        cu_num_logits=bounds.int().to(device),
        cu_num_logits_np=bounds.numpy(),
    )
    states = torch.randn(total, hidden, generator=generator).to(device)
    logits = torch.randn(total, vocabulary, generator=generator).to(device)
    drafts = torch.randn(requests, steps, vocabulary, generator=generator).to(device)
    runner = SimpleNamespace(
        sampler=Sampler(),
        structured_outputs_worker=SimpleNamespace(
            apply_grammar_bitmask=lambda logits: logits[:, 7].fill_(float("-inf"))
        ),
        speculator=SimpleNamespace(draft_logits=drafts),
        execute_model_state=SimpleNamespace(hidden_states=states, input_batch=batch),
        req_states=SimpleNamespace(req_id_to_index={name: number for number, name in enumerate(batch.req_ids)}),
        max_num_reqs=requests,
        batch_sharder=None,
        adaptive_verification=None,
        speculative_config=None,
        parallel_config=SimpleNamespace(),
        device=torch.device(device),
    )
    runner.rejection_sampler = RejectionSampler(runner.sampler, None, device)
    return runner, batch, logits, drafts


def make_rule(theta, hidden):
    torch.manual_seed(1)
    config = JudgeConfig(features=FEATURES, hidden_size=hidden, thresholds={"default": theta})
    return JudgeRule(SelfJudgeVerifier(config))


def run(module, step, theta, guard=nullcontext, invalid=None):
    """The step twice, so that the second one does nothing for the first time: accepted drafts, and statistics."""
    runner, batch, logits, drafts = step
    rule = make_rule(theta, runner.execute_model_state.hidden_states.shape[1])
    approver = Approver(rule, runner.device, 16)
    requests = Requests(approver, rule, theta)
    tap = module.V2Tap(runner, approver, requests, Timing(False, runner.device))
    for slot in range(runner.max_num_reqs):
        own = {"selfjudge": "off"} if slot == OFF_SLOT else None
        runner.sampler.logits_processors[-1].add_request(slot, SimpleNamespace(extra_args=own))
    raw = logits.clone()
    for around in (nullcontext, guard):
        tap.before_sampling(None)
        with around():
            output = runner.rejection_sampler(logits, batch, drafts, invalid)
        tap.after_sampling()
    assert torch.equal(raw, logits)  # nobody wrote into the raw logits
    return [count - 1 for count in output.num_sampled.tolist()], requests.statistics(True)


@contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def expected(step, theta):
    """Each request verified by itself, as in the Hugging Face loop."""
    runner, batch, logits, drafts = step
    states = runner.execute_model_state.hidden_states[batch.logits_indices]
    found = []
    for slot, (start, stop) in enumerate(pairwise(batch.cu_num_logits_np.tolist())):
        block = Block(
            draft_tokens=batch.input_ids[None, start + 1 : stop],
            target_logits=logits[None, start:stop],
            hidden=states[None, start:stop],
            draft_logits=drafts[None, slot, : stop - start - 1],
        )
        rule = None if slot == OFF_SLOT else make_rule(theta, states.shape[1])
        found.append(int(verify(block, rule).accepted))
    return found


@pytest.mark.parametrize("theta", [0.0, 0.4, 0.5, 0.6, 1.0])
def test_every_request_is_verified_as_in_the_loop(runner_v2, theta):
    step = make_step("cpu")
    accepted, statistics = run(runner_v2, step, theta)
    assert accepted == expected(step, theta)
    assert statistics["drafted"] == 2 * sum(COUNTS)
    assert statistics["judge_accepted"] + statistics["aligned"] == 2 * sum(accepted)


def test_some_thresholds_accept_a_part(runner_v2):
    accepted = [tuple(expected(make_step("cpu"), theta)) for theta in (0.0, 0.4, 0.5, 0.6, 1.0)]
    assert len(set(accepted)) > 2
    assert accepted[0] == tuple(0 if slot == OFF_SLOT else count for slot, count in enumerate(COUNTS))


def test_placeholders_and_invalid_drafts_are_not_relaxed(runner_v2):
    step = make_step("cpu")
    batch = step[1]
    batch.input_ids[2] = -1  # the second draft of the first request
    invalid = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    invalid[int(batch.cu_num_logits_np[2]) + 3] = True  # the third draft of the third request
    accepted, _ = run(runner_v2, step, 0.0, invalid=invalid)
    assert accepted == [1, 0, 2, 0, 1]


def test_logits_are_read_as_they_were_before_a_grammar_mask(runner_v2):
    plain, masked = make_step("cpu"), make_step("cpu")
    runner, batch, logits, drafts = masked
    rule = make_rule(0.5, 64)
    seen = []
    approver = Approver(rule, runner.device, 16)
    stock, approver.approve = approver.approve, lambda rows: seen.append(rows.logits.clone()) or stock(rows)
    tap = runner_v2.V2Tap(runner, approver, Requests(approver, rule, 0.5), Timing(False, runner.device))
    tap.before_sampling(object())
    runner.structured_outputs_worker.apply_grammar_bitmask(logits)
    assert (logits[:, 7] == float("-inf")).all()
    runner.rejection_sampler(logits, batch, drafts)
    assert torch.equal(torch.cat(seen), plain[2])


def dropped(step):
    """The step with a speculator that drops its logits after drafting, and a function that drafts."""
    runner, _, _, drafts = step
    requests, steps = drafts.shape[:2]
    made = []
    speculator = SimpleNamespace(
        draft_logits=None,
        model=SimpleNamespace(compute_logits=lambda hidden: made.pop(0)),
        idx_mapping=torch.full((requests + 2,), -1, device=drafts.device),
        current_draft_step=torch.tensor(0, device=drafts.device),
        num_speculative_steps=steps,
    )
    runner.speculator = speculator

    def draft():
        order = torch.arange(requests, device=drafts.device).flip(0)
        speculator.idx_mapping[:requests].copy_(order)
        for place in range(steps):
            filling = drafts.new_zeros(2, drafts.shape[2])  # rows that pad a batch
            made.append(torch.cat([drafts[order, place], filling]))
            speculator.current_draft_step.fill_(place)
            speculator.model.compute_logits(None)

    return draft


def test_draft_logits_that_vllm_drops_are_kept(runner_v2):
    step = make_step("cpu")
    draft = dropped(step)
    kept = runner_v2.DraftLogits(step[0].speculator, step[0].max_num_reqs)
    draft()
    assert torch.equal(kept.cache[:-1], step[3])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_keeping_draft_logits_on_a_gpu_does_not_wait(runner_v2):
    step = make_step("cuda")
    draft = dropped(step)
    kept = runner_v2.DraftLogits(step[0].speculator, step[0].max_num_reqs)
    draft()
    with no_waiting():
        draft()
    assert torch.equal(kept.cache[:-1], step[3])


def test_a_batch_without_what_is_read_is_refused(runner_v2, monkeypatch):
    runner = make_step("cpu")[0]
    rule = make_rule(0.5, 64)
    approver = Approver(rule, runner.device, 16)
    monkeypatch.delitem(InputBatch.__annotations__, "cu_num_logits_np")
    with pytest.raises(RuntimeError, match="InputBatch has no cu_num_logits_np"):
        runner_v2.V2Tap(runner, approver, Requests(approver, rule, 0.5), Timing(False, runner.device))
    assert type(runner.rejection_sampler) is RejectionSampler  # nothing was replaced


def test_another_batch_than_the_forwards_is_refused(runner_v2):
    runner, batch, logits, drafts = make_step("cpu")
    rule = make_rule(0.5, 64)
    approver = Approver(rule, runner.device, 16)
    tap = runner_v2.V2Tap(runner, approver, Requests(approver, rule, 0.5), Timing(False, runner.device))
    with pytest.raises(RuntimeError, match="another batch"):
        runner.rejection_sampler(logits, batch, drafts)  # without `before_sampling`
    tap.before_sampling(None)
    with pytest.raises(RuntimeError, match="another batch"):
        runner.rejection_sampler(logits, SimpleNamespace(**vars(batch)), drafts)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_a_step_on_a_gpu_does_not_wait(runner_v2, theta):
    assert run(runner_v2, make_step("cuda"), theta, no_waiting) == run(runner_v2, make_step("cpu"), theta)
