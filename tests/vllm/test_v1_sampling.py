"""Temperature above 0: the sampler on seeded tensors, and whole engines.

vLLM's CPU kernel that repeats a request's temperature, top-k and top-p for each of its drafts writes to a copy, so that
stock speculation samples from garbage there. These tests put a correct repetition in its place, for stock and judge.
Requests' own seeds end the stock engine on a CPU (its generators have no offset), so engines are seeded as a whole.
"""

from types import SimpleNamespace

import pytest
import torch
from vllm_engines import GAMMA, generate, plain, token_ids

from hf_selfjudge.rules import ProbabilityFloor, TopK
from hf_selfjudge.vllm.approval import OFF, Approver
from hf_selfjudge.vllm.requests import Requests
from hf_selfjudge.vllm.timing import Timing

pytestmark = pytest.mark.vllm
VOCAB, CPU = 40, torch.device("cpu")


@pytest.fixture(autouse=True)
def _correct_repetition(monkeypatch, stock):  # an engine, because it puts the CPU's kernels in place
    from vllm.v1.sample import rejection_sampler

    def repeat(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts.long()).to(x.dtype)

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", repeat)


class Step:
    """One step of three requests (4, 0 and 3 drafts) on random tensors, verified by stock vLLM or with a rule."""

    counts = (4, 0, 3)

    def __init__(self, temperature=1.0, **sampling):
        generator = torch.Generator().manual_seed(5)
        drafts, rows = sum(self.counts), sum(self.counts) + len(self.counts)
        self.logits = 2 * torch.randn(rows, VOCAB, generator=generator)
        self.hidden = torch.randn(rows, 8, generator=generator)
        self.tokens = torch.randint(0, VOCAB, (drafts,), generator=generator, dtype=torch.int32)
        self.target_rows = [0, 1, 2, 3, 6, 7, 8]
        self.temperature, self.sampling = temperature, sampling

    def metadata(self):
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

        counts = torch.tensor(self.counts, dtype=torch.int32)
        return SpecDecodeMetadata(
            draft_token_ids=self.tokens,
            num_draft_tokens=list(self.counts),
            cu_num_draft_tokens=counts.cumsum(0, dtype=torch.int32),
            cu_num_sampled_tokens=(counts + 1).cumsum(0, dtype=torch.int32),
            target_logits_indices=torch.tensor(self.target_rows, dtype=torch.int32),
            bonus_logits_indices=torch.tensor([4, 5, 9], dtype=torch.int32),
            logits_indices=torch.arange(10, dtype=torch.int32),
        )

    def sampling_metadata(self, seed):
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata

        def each(value, dtype):
            return None if value is None else torch.full((3,), value, dtype=dtype)

        return SamplingMetadata(
            temperature=each(self.temperature, torch.float32),
            all_greedy=False,
            all_random=True,
            top_p=each(self.sampling.get("top_p"), torch.float32),
            top_k=each(self.sampling.get("top_k"), torch.int32),
            generators={index: torch.Generator().manual_seed(seed + index) for index in range(3)},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=torch.zeros(3),
            presence_penalties=torch.zeros(3),
            repetition_penalties=torch.ones(3),
            output_token_ids=[[], [], []],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )

    def run(self, rule=None, seed=0, thresholds=(None, None, None), room=(True,)):
        """Sampled tokens, -1 behind them, and the counters; `room` of the drafter in the steps before this one."""
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.sample.sampler import Sampler

        from hf_selfjudge.vllm.runner_v1 import V1Tap

        sampler = Sampler()
        metadata = self.metadata()
        runner = SimpleNamespace(
            sampler=sampler,
            rejection_sampler=RejectionSampler(sampler, None, CPU),
            speculative_config=None,
            device=CPU,
            drafter=None,
            model=SimpleNamespace(compute_logits=lambda hidden: self.logits[: hidden.shape[0]]),
            input_batch=SimpleNamespace(req_ids=["a", "b", "c"]),
            requests={
                name: SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"selfjudge": threshold}))
                for name, threshold in zip("abc", thresholds, strict=True)
            },
            execute_model_state=SimpleNamespace(
                logits=self.logits.clone(),
                sample_hidden_states=self.hidden,
                spec_decode_metadata=metadata,
                spec_decode_common_attn_metadata=None,
            ),
            _input_fits_in_drafter=None,
        )
        approver = Approver(rule, CPU)
        if rule is not None:
            tap = V1Tap(runner, approver, Requests(approver, rule, None), Timing(False, CPU))
            for fits in room:
                runner._input_fits_in_drafter = lambda metadata, fits=fits: fits
                tap.before_sampling(None)
                tap.after_sampling()
            tap.before_sampling(None)
        torch.manual_seed(seed)
        output = runner.rejection_sampler(metadata, None, self.logits.clone(), self.sampling_metadata(seed))
        return output.sampled_token_ids.tolist(), approver.totals.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_a_rule_that_accepts_nothing_is_stock(seed):
    step = Step(temperature=0.8)
    stock = step.run(seed=seed)[0]
    assert step.run(ProbabilityFloor(1.0), seed)[0] == stock
    assert step.run(TopK(VOCAB), seed, ("off", "off", "off"))[0] == stock


@pytest.mark.parametrize("seed", range(5))
def test_a_rule_that_accepts_all_keeps_every_draft_and_stocks_bonus_token(seed):
    step = Step()
    tokens, counts = step.run(TopK(VOCAB), seed)
    assert tokens[0][:4] == step.tokens[:4].tolist()
    assert tokens[2][:3] == step.tokens[4:].tolist()
    assert counts[:2] == [7, 7]
    assert counts[2] + counts[3] == 7
    for row, (count, kept) in enumerate(zip(step.counts, tokens, strict=True)):
        assert kept[count + 1 :] == [-1] * (4 - count)
        assert kept[count] >= 0, row


def test_what_vllm_fills_in_without_room_to_draft_is_never_relaxed():
    step = Step()
    stock = step.run()[0]
    assert step.run(TopK(VOCAB), room=(False,))[0] == stock
    assert step.run(TopK(VOCAB), room=(True, False))[0] == stock
    assert step.run(TopK(VOCAB), room=(False, True))[0] != stock


@pytest.mark.parametrize("seed", range(20))
def test_one_requests_threshold_leaves_the_others_as_stock(seed):
    """The same random numbers: a judged neighbour draws none."""
    step = Step(temperature=0.7, top_k=20, top_p=0.95)
    stock = step.run(seed=seed)[0]
    mixed = step.run(TopK(10), seed, ("off", None, None))[0]
    assert mixed[:2] == stock[:2]


def test_what_top_k_cuts_off_is_never_relaxed():
    step = Step(top_k=3)
    pairs = zip(step.target_rows, step.tokens, strict=True)
    ranks = [int((step.logits[row] > step.logits[row, token]).sum()) for row, token in pairs]
    assert max(ranks) >= 3
    for seed in range(10):
        tokens = step.run(TopK(VOCAB), seed)[0]
        for row, first, ours in ((0, 0, ranks[:4]), (2, 4, ranks[4:])):
            for place, rank in enumerate(ours):
                if rank >= 3:
                    assert tokens[row][place] != step.tokens[first + place]
                    break
                assert tokens[row][place] == step.tokens[first + place]


def test_rejected_drafts_are_corrected_from_the_targets_own_distribution():
    """The row that nobody approves keeps p, without the draft token that a certain drafter would have taken."""
    step = Step()
    step.counts = (1, 0, 0)
    step.logits, step.hidden, step.tokens = step.logits[:4], step.hidden[:4], step.tokens[:1]
    step.target_rows = [0]
    rule = ProbabilityFloor(1.0)
    draws = [_first(step, rule, seed) for seed in range(1000)]
    found = torch.bincount(torch.tensor(draws), minlength=VOCAB) / len(draws)
    assert (found - step.logits[0].softmax(-1)).abs().max() < 0.05


def _first(step, rule, seed):
    metadata = step.metadata
    step.metadata = lambda: _only_first(metadata())
    try:
        return step.run(rule, seed)[0][0][0]
    finally:
        step.metadata = metadata


def _only_first(metadata):
    metadata.bonus_logits_indices = torch.tensor([1, 2, 3], dtype=torch.int32)
    return metadata


@pytest.fixture
def sampled(prompts):
    """One request after the other, each with the process's generator at the same seed."""
    short = [prompt for prompt in prompts if len(prompt) <= 90]  # read in one chunk by both engines
    assert len(short) > 2

    def run(llm, threshold=None, seed=0, max_tokens=40, **params):
        found = []
        for prompt in short:
            torch.manual_seed(seed)
            params = {"temperature": 0.9, **params}
            found += token_ids(generate(llm, [prompt], max_tokens, [threshold], **params))
        return found

    run.prompts = short
    return run


def test_engines_sample_alike_when_off(judged, stock, sampled):
    params = {"top_p": 0.95, "top_k": 50}
    expected = sampled(stock, **params)
    assert sampled(judged, "off", **params) == expected
    assert sampled(judged, OFF, **params) == expected
    assert sampled(stock, seed=1, **params) != expected


def test_a_judged_answer_repeats(judged, sampled):
    first = sampled(judged, "f1")
    assert sampled(judged, "f1") == first
    assert sampled(judged, "f1", seed=4) != first
    assert sampled(judged, "off") != first


def test_accepting_all_samples_only_the_bonus_tokens(judged, embedded, sampled):
    draft = embedded[1]
    answers = sampled(judged, 0.0, max_tokens=1 + 2 * (GAMMA + 1), temperature=1.0)
    for prompt, tokens in zip(sampled.prompts, answers, strict=True):
        for start in range(1, len(tokens) - GAMMA + 1, GAMMA + 1):
            assert tokens[start : start + GAMMA] == plain(draft, prompt + tokens[:start], GAMMA)
