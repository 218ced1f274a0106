"""Known costs and gains are found again, also where hard prompts have more decisions."""

import pytest
import torch

from hf_selfjudge.tuning.effects import Evidence, fit
from hf_selfjudge.tuning.explorer import Decisions

HARM, SHARE = -1.0, 0.5


def simulate(answers=6000, seed=0):
    """Answers whose prompts differ in difficulty: a hard one has more decisions, and their second input says so."""
    generator = torch.Generator().manual_seed(seed)
    difficulty = torch.rand(answers, generator=generator)
    counts = (2 + 12 * difficulty).long()
    sequences = torch.arange(answers).repeat_interleave(counts)
    harmful = (torch.rand(len(sequences), generator=generator) < 0.3).float()
    inputs = torch.stack([harmful, difficulty[sequences] + torch.rand(len(sequences), generator=generator)], dim=1)
    taken = torch.rand(len(sequences), generator=generator) < SHARE
    gains = torch.where(taken, (1 + 4 * harmful).long(), 0)
    logits = 3 - 4 * difficulty
    others = torch.sigmoid(logits)
    logits = logits.index_add(0, sequences, HARM * harmful * taken)
    kept = torch.rand(answers, generator=generator) < torch.sigmoid(logits)
    return Evidence(kept, others, torch.arange(answers), Decisions(sequences, taken, gains, inputs), SHARE)


@pytest.fixture(scope="module")
def fitted():
    return fit(simulate())


def test_the_cost_is_that_of_the_tokens_and_not_of_the_prompts(fitted):
    effects, _ = fitted
    cost = effects.cost[:-1] / effects.std
    assert HARM < cost[0] < 0.6 * HARM, "a little less than it is: other tokens' harm looks like noise"
    assert abs(cost[1]) < 0.15, "difficulty costs nothing, whatever the number of decisions"


def test_gains_are_a_linear_regression(fitted):
    effects, _ = fitted
    gain = effects.gain[:-1] / effects.std
    assert gain[0] == pytest.approx(4, abs=0.02)
    assert gain[1] == pytest.approx(0, abs=0.02)


def test_unseen_answers_tell_what_each_part_of_the_decisions_costs(fitted):
    _, table = fitted
    assert [len(table), sum(part["decisions"] for part in table)] == [5, len(simulate().decisions)]
    worst, best = table[0], table[-1]
    assert worst["points"] < -8
    assert worst["gain"] == pytest.approx(5)
    assert abs(best["points"]) < 3 * best["standard_error"]
    assert best["gain"] == pytest.approx(1)


def test_some_answers_keep_their_decisions():
    inputs = torch.arange(5.0)[:, None]
    decisions = Decisions(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 0, 1, 1, 0]).bool(), torch.zeros(5), inputs)
    every = Evidence(torch.tensor([True, False, True]), torch.ones(3), torch.tensor([4, 5, 6]), decisions, 0.25)
    some = every.select(torch.tensor([True, False, True]))
    assert some.prompts.tolist() == [4, 6]
    assert some.decisions.sequences.tolist() == [0, 0, 1, 1]
    assert some.decisions.inputs[:, 0].tolist() == [0, 1, 3, 4]
    assert some.sums(some.decisions.inputs)[:, 0].tolist() == [0.75 * 0 - 0.25 * 1, 0.75 * 3 - 0.25 * 4]


def test_answers_of_one_kind_are_refused():
    evidence = simulate(200)
    always = Evidence(evidence.kept | True, evidence.others, evidence.prompts, evidence.decisions, SHARE)
    with pytest.raises(ValueError, match="Of the 40 answers in a fifth of the prompts 40 are kept"):
        fit(always)


def test_inputs_that_say_the_same_share_their_weight():
    evidence = simulate(2000)
    inputs = evidence.decisions.inputs
    doubled = torch.cat([inputs, inputs[:, :1] + 1e-7 * torch.randn(len(inputs), 1)], dim=1)
    decisions = Decisions(evidence.decisions.sequences, evidence.decisions.taken, evidence.decisions.gains, doubled)
    effects, _ = fit(Evidence(evidence.kept, evidence.others, evidence.prompts, decisions, SHARE))
    assert effects.gain[0] == pytest.approx(float(effects.gain[2]), abs=0.02)
    assert float(effects.gain[:-1].abs().max()) < 5


def test_effects_that_are_not_there_are_not_found():
    evidence = simulate(3000, seed=1)
    decisions, generator = evidence.decisions, torch.Generator().manual_seed(5)
    noise = torch.randn(len(decisions), 12, generator=generator)
    nothing = Decisions(decisions.sequences, decisions.taken, decisions.gains, noise)
    effects, table = fit(Evidence(evidence.kept, evidence.others, evidence.prompts, nothing, SHARE))
    assert float(effects.cost[:-1].abs().max()) < 0.1, "noise"
    spread = [part["points"] for part in table]
    assert max(spread) - min(spread) < 6 * table[0]["standard_error"]
