"""Known costs and gains are found again, also where hard prompts have more decisions."""

import math
from dataclasses import replace

import pytest
import torch

from hf_selfjudge.tuning.effects import Evidence, effect_table, fit
from hf_selfjudge.tuning.explorer import Decisions

HARM, SHARE = -0.05, 0.5


def simulate(prompts=1200, rollouts=4, seed=0, checked=True):
    """Answers whose prompts differ in difficulty: a hard one has more decisions, and their second input says so."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.arange(prompts).repeat(rollouts)
    difficulty = torch.rand(prompts, generator=generator)[owners]
    sequences = torch.arange(len(owners)).repeat_interleave((2 + 12 * difficulty).long())
    harmful = (torch.rand(len(sequences), generator=generator) < 0.3).float()
    inputs = torch.stack([harmful, difficulty[sequences] + torch.rand(len(sequences), generator=generator)], dim=1)
    taken = torch.rand(len(sequences), generator=generator) < SHARE
    gains = torch.where(taken, (1 + 4 * harmful).long(), 0)
    harm = torch.zeros(len(owners)).index_add(0, sequences, HARM * harmful * taken)
    alike = 0.9 - 0.3 * difficulty + harm + 0.05 * torch.randn(len(owners), generator=generator)
    kept = (torch.rand(len(owners), generator=generator) < 0.9 - 0.4 * difficulty + harm).float()
    if not checked:
        kept = torch.full_like(kept, math.nan)
    return Evidence(kept, alike, owners, Decisions(sequences, taken, gains, inputs), SHARE)


@pytest.fixture(scope="module", params=[True, False], ids=["checked", "open"])
def fitted(request):
    return fit(simulate(checked=request.param))


def test_the_cost_is_that_of_the_tokens_and_not_of_the_prompts(fitted):
    effects, _ = fitted
    cost = effects.cost[:-1] / effects.std
    assert cost[0] == pytest.approx(HARM, rel=0.15)
    assert abs(cost[1]) < 0.1 * abs(HARM), "difficulty costs nothing, whatever the number of decisions"
    assert effects.cost[-1] == pytest.approx(0.3 * HARM, rel=0.2), "of the average decision"


def test_gains_are_a_linear_regression(fitted):
    effects, _ = fitted
    gain = effects.gain[:-1] / effects.std
    assert gain[0] == pytest.approx(4, abs=0.02)
    assert gain[1] == pytest.approx(0, abs=0.02)


def test_unseen_answers_tell_what_each_part_of_the_decisions_costs():
    evidence = simulate()
    _, table = fit(evidence)
    assert [len(table), sum(part["decisions"] for part in table)] == [5, len(evidence.decisions)]
    worst, best = table[0], table[-1]
    assert worst["resemblance"] == pytest.approx(100 * HARM, abs=0.5)
    assert abs(worst["kept"] - 100 * HARM) < 4 * worst["kept_error"]
    assert worst["gain"] == pytest.approx(5)
    assert abs(best["resemblance"]) < 4 * best["resemblance_error"] < 1.0
    assert best["gain"] == pytest.approx(1)


def test_errors_are_those_of_other_prompts():
    """Where long answers vary more, and a prompt's answers vary together."""
    found, told = [], []
    for seed in range(80):
        evidence = simulate(150, seed=seed)
        counts = torch.bincount(evidence.decisions.sequences, minlength=len(evidence.kept)).float()
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(150, generator=generator)[evidence.prompts] * (1 - 2 * (torch.arange(600) // 150 % 2))
        part = effect_table(
            evidence.decisions.inputs[:, 1].double(),
            replace(evidence, resemblance=evidence.resemblance + 0.004 * counts**1.5 * noise),
        )[-1]
        found.append(part["resemblance"])
        told.append(part["resemblance_error"])
    assert sum(told) / len(told) == pytest.approx(float(torch.tensor(found).std()), rel=0.2)


def test_without_checkers_nothing_is_said_of_kept_answers():
    _, table = fit(simulate(checked=False))
    assert {part["kept"] for part in table} == {None}
    assert table[0]["resemblance"] == pytest.approx(100 * HARM, abs=0.5)


def test_the_outcome_is_what_is_known_of_an_answer():
    nothing = Decisions(torch.empty(0).long(), torch.empty(0).bool(), torch.empty(0), torch.empty(0, 1))
    kept, alike = torch.tensor([1.0, 0.0, math.nan]), torch.tensor([0.5, 0.5, 0.5])
    assert Evidence(kept, alike, torch.arange(3), nothing, 0.5).outcome.tolist() == [0.75, 0.25, 0.5]


def test_some_answers_keep_their_decisions():
    inputs = torch.arange(5.0)[:, None]
    decisions = Decisions(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 0, 1, 1, 0]).bool(), torch.zeros(5), inputs)
    every = Evidence(torch.tensor([1.0, 0, 1]), torch.ones(3), torch.tensor([4, 5, 4]), decisions, 0.25)
    some = every.select(torch.tensor([True, False, True]))
    assert some.prompts.tolist() == [4, 4]
    assert some.decisions.sequences.tolist() == [0, 0, 1, 1]
    design = some.design(some.decisions.inputs.double(), torch.tensor([0.2, 0.6], dtype=torch.float64))
    assert design[:, 0].tolist() == [0.75 * 0 - 0.25 * 1, 0.75 * 3 - 0.25 * 4]
    assert design[:, 1].tolist() == pytest.approx([0.6, 0.2]), "the prompt's other answer"
    alone = every.design(inputs.double(), torch.tensor([0.2, 0.7, 0.6], dtype=torch.float64))
    assert alone[1, 1] == pytest.approx(0.5), "the mean of all where a prompt has one answer"


def test_too_few_answers_are_refused():
    with pytest.raises(ValueError, match=r"32 answers with .*; expected at least 50"):
        fit(simulate(prompts=10))


def test_inputs_that_say_the_same_share_their_weight():
    evidence = simulate(500)
    inputs = evidence.decisions.inputs
    doubled = torch.cat([inputs, inputs[:, :1] + 1e-7 * torch.randn(len(inputs), 1)], dim=1)
    decisions = Decisions(evidence.decisions.sequences, evidence.decisions.taken, evidence.decisions.gains, doubled)
    effects, _ = fit(Evidence(evidence.kept, evidence.resemblance, evidence.prompts, decisions, SHARE))
    assert effects.gain[0] == pytest.approx(float(effects.gain[2]), abs=0.02)
    assert effects.cost[0] == pytest.approx(float(effects.cost[2]), rel=0.02)


def test_effects_that_are_not_there_are_not_found():
    evidence = simulate(800, seed=1)
    decisions, generator = evidence.decisions, torch.Generator().manual_seed(5)
    noise = torch.randn(len(decisions), 12, generator=generator)
    nothing = Decisions(decisions.sequences, decisions.taken, decisions.gains, noise)
    effects, table = fit(Evidence(evidence.kept, evidence.resemblance, evidence.prompts, nothing, SHARE))
    assert float(effects.cost[:-1].abs().max()) < 0.05 * abs(HARM)
    spread = [part["resemblance"] for part in table]
    assert max(spread) - min(spread) < 6 * table[0]["resemblance_error"]


def test_a_prediction_with_few_values_leaves_parts_empty():
    evidence = simulate(200)
    table = effect_table(evidence.decisions.inputs[:, 0].double(), evidence)
    held = [part["decisions"] for part in table if part["decisions"]]
    assert len(held) == 2
    assert all(math.isfinite(part[name]) for part in table for name in ("kept", "kept_error", "resemblance", "gain"))
