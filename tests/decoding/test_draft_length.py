"""The adaptive draft length: what it learns, what it chooses, and that it never changes exact outputs."""

import random

import pytest
import torch
from tiny import build_judge, prompts

from hf_selfjudge.decoding.draft_length import LOOK_AGAIN, AdaptiveLength, HeuristicLength, _Line


def simulate(length, acceptance, cycles, costs, seed=0):
    """Blocks whose tokens are accepted with a fixed probability; tokens per second after a while."""
    rng = random.Random(seed)
    tokens, seconds = 0.0, 0.0
    for cycle in range(cycles):
        drafted = length.gamma
        accepted = 0
        while accepted < drafted and rng.random() < acceptance:
            accepted += 1
        length.observe([drafted], [accepted], (0.0, 0.0), [[0.9] * drafted])
        if cycle >= cycles // 4:
            tokens += accepted + 1
            seconds += costs[0] * drafted + costs[1] + costs[2] * (drafted + 1)
    return tokens / seconds


class Fixed:
    def __init__(self, gamma):
        self.gamma = gamma

    def observe(self, *args):
        pass


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("costs", [(1.0, 10.0, 0.0), (3.0, 10.0, 0.5), (1.0, 100.0, 0.1), (10.0, 10.0, 0.0)])
def test_adaptive_is_close_to_the_best_fixed_length(acceptance, costs):
    best = max(simulate(Fixed(gamma), acceptance, 4000, costs) for gamma in range(21))
    found = simulate(AdaptiveLength(20, watches=False, costs=costs), acceptance, 4000, costs)
    assert found > 0.93 * best


def test_drafting_stops_where_it_does_not_pay_and_is_tried_again():
    length = AdaptiveLength(8, watches=False, costs=(10.0, 10.0, 0.0))
    for _ in range(40):
        length.observe([length.gamma], [0], (0.0, 0.0), [[]])
    assert length.gamma == 0
    tried = 0
    for _ in range(3 * LOOK_AGAIN):
        length.observe([length.gamma], [0], (0.0, 0.0), [[]])
        tried += length.gamma > 0
    assert 2 <= tried <= 4
    for _ in range(20 * LOOK_AGAIN):  # drafts are good again
        length.observe([length.gamma], [length.gamma], (0.0, 0.0), [[]])
    length = AdaptiveLength(8, watches=False, costs=(1.0, 10.0, 0.0))
    for _ in range(50):
        length.observe([length.gamma], [length.gamma], (0.0, 0.0), [[]])
    assert length.gamma == 8


def test_confidence_ends_a_block():
    length = AdaptiveLength(12, watches=True, costs=(3.0, 10.0, 0.2))
    rng = random.Random(1)
    for _ in range(300):
        confidences = [rng.choice([0.1, 0.99]) for _ in range(6)]
        accepted = next((at for at, c in enumerate(confidences) if c < 0.5), 6)  # unsure drafts are rejected
        length.observe([6], [accepted], (0.0, 0.0), [confidences])
    assert length.goes_on([[0.99, 0.99]])
    assert not length.goes_on([[0.99, 0.1]])
    assert length.goes_on([[0.99, 0.1], [0.99, 0.99], [0.99, 0.99]])  # other rows still gain


def test_costs_are_measured_by_a_line():
    line = _Line()
    for tokens in (3, 5, 9, 2, 7):
        line.add(tokens, 0.01 + 0.002 * tokens)
    assert line.slope == pytest.approx(0.002, rel=1e-6)
    assert line.at(20) == pytest.approx(0.05, rel=1e-6)
    flat = _Line()
    flat.add(5, 0.3)
    assert (flat.slope, flat.at(9)) == (0.0, 0.3)


def test_the_heuristic_is_transformers_own():
    length = HeuristicLength(5)
    length.observe([5], [5], (0.0, 0.0), [[]])
    assert length.gamma == 7
    length.observe([7], [2], (0.0, 0.0), [[]])
    assert length.gamma == 6


@pytest.mark.parametrize("cache", [None, "static"])
def test_exact_outputs_do_not_depend_on_the_schedule(pair, cache):
    for prompt in prompts(3, seed=8):
        out = pair.judged(
            prompt,
            build_judge(threshold=1.0),
            40,
            gamma=8,
            num_assistant_tokens_schedule="adaptive",
            cache_implementation=cache,
        )
        assert torch.equal(out.sequences, pair.plain(prompt, 40))
        assert out.judge_stats.drafted < 8 * out.judge_stats.cycles  # a draft as dear as its target does not pay
