"""Exact modes keep the target's distribution; a wrong residual would show."""

import itertools

import pytest
import torch
from scipy.stats import chisquare
from tiny import Always, build_draft, build_judge, build_model
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from hf_selfjudge import verification
from hf_selfjudge.features import Block
from hf_selfjudge.rules import as_rule

VOCAB = 8
DRAWS = 40_000
EXACT = {
    "alignment-only": {"rule": Always(True), "mode": "alignment-only"},
    "exact": {"rule": as_rule("exact"), "mode": "two-stage"},
    "theta=1": {"rule": as_rule(build_judge(("log_p",), threshold=1.0, hidden_size=1)), "mode": "two-stage"},
}


def p_value(pairs, expected):
    """Chi-square of observed token pairs against their joint probabilities; rare cells are pooled."""
    counts = torch.bincount(pairs[:, 0] * VOCAB + pairs[:, 1], minlength=VOCAB * VOCAB).double()
    wanted = expected.flatten().double() / expected.double().sum() * len(pairs)
    assert counts[wanted == 0].sum() == 0, "a token of probability zero was drawn"
    rare = wanted < 8
    observed, wanted = (torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts, wanted))
    keep = wanted > 0
    return chisquare(observed[keep].numpy(), wanted[keep].numpy()).pvalue


class World:
    """A target and a draft as tables: the first token's scores, and the second's after each first token."""

    def __init__(self, warp=lambda scores: scores, seed=0):
        generator = torch.Generator().manual_seed(seed)
        p1, p2, p3 = (torch.randn(rows, VOCAB, generator=generator) for rows in (1, VOCAB, VOCAB))
        q1, q2 = (p + torch.randn(p.shape, generator=generator) for p in (p1, p2))
        self.p1, self.q1 = warp(p1)[0], warp(q1)[0]
        self.p2, self.q2, self.p3 = warp(p2), warp(q2), warp(p3)

    @property
    def joint(self):
        return self.p1.softmax(-1)[:, None] * self.p2.softmax(-1)

    def blocks(self, drafter, rows=DRAWS):
        """Blocks of two drafted tokens; without a distribution the drafter always says the same."""
        if drafter:
            first = torch.multinomial(self.q1.softmax(-1), rows, replacement=True)
            second = torch.multinomial(self.q2.softmax(-1)[first], 1)[:, 0]
            q = torch.stack([self.q1.expand(rows, -1), self.q2[first]], dim=1)
        else:
            first, second, q = self.p1.argmax().expand(rows), self.p2[self.p1.argmax()].argmax().expand(rows), None
        p = torch.stack([self.p1.expand(rows, -1), self.p2[first], self.p3[second]], dim=1)
        tokens = torch.stack([first, second], dim=1)
        return Block(tokens, p, torch.zeros(rows, 3, 1), q, p, q, torch.rand(rows, 2))

    def draw(self, drafter, rule, mode):
        """The first two tokens of each row; where a cycle gave only one, the next cycle's is the target's own."""
        block = self.blocks(drafter)
        verdict = verification.verify(block, rule, mode)
        first = torch.where(verdict.accepted > 0, block.draft_tokens[:, 0], verdict.next_token)
        own = torch.multinomial(self.p2.softmax(-1)[first], 1)[:, 0]
        second = torch.where(verdict.accepted > 1, block.draft_tokens[:, 1], verdict.next_token)
        tokens = torch.stack([first, torch.where(verdict.accepted > 0, second, own)], dim=1)
        return tokens, block, verdict


def temperature_and_top_p(scores):
    return TopPLogitsWarper(0.8)(None, TemperatureLogitsWarper(0.7)(None, scores))


@pytest.mark.parametrize("warp", [lambda scores: scores, temperature_and_top_p], ids=["plain", "temperature+top_p"])
@pytest.mark.parametrize("drafter", [True, False], ids=["draft model", "no distribution"])
@pytest.mark.parametrize("exact", EXACT)
def test_exact_modes_keep_the_targets_distribution(exact, drafter, warp):
    world = World(warp)
    tokens, block, verdict = world.draw(drafter, **EXACT[exact])
    assert p_value(tokens, world.joint) > 0.001
    # the bonus token behind a fully accepted block is the target's own
    whole = verdict.accepted == 2
    bonus = torch.stack([block.draft_tokens[whole, 1], verdict.next_token[whole]], dim=1)
    last = torch.bincount(bonus[:, 0], minlength=VOCAB)
    assert p_value(bonus, last[:, None] * world.p3.softmax(-1)) > 0.001
    assert 0 < int((verdict.accepted == 0).sum()) < DRAWS  # both accepted and corrected tokens were tested
    assert int(whole.sum()) > 1000


@pytest.mark.parametrize("drafter", [True, False], ids=["draft model", "no distribution"])
def test_a_wrong_residual_would_show(monkeypatch, drafter):
    """The same test with corrections drawn from p instead of max(0, p - q)."""
    right = verification._next_token

    def sample_from_p(block, accepted, exact_correction):
        return right(block, accepted, exact_correction=False)

    monkeypatch.setattr(verification, "_next_token", sample_from_p)
    world = World()
    assert p_value(world.draw(drafter, **EXACT["alignment-only"])[0], world.joint) < 1e-6


def test_a_judge_changes_the_distribution():
    world = World()
    assert p_value(world.draw(True, Always(True), "two-stage")[0], world.joint) < 1e-6


# -- through generate ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """A pair over eight tokens, the prompt, and the joint distribution of its first two tokens."""
    target = build_model(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return target, build_draft(target, noise=0.5), torch.tensor([[3, 5, 4]])


def joint(target, prompt, warp):
    probabilities = []
    for first in range(VOCAB):
        rows = target(torch.cat([prompt, torch.tensor([[first]])], dim=1)).logits[0, -2:].float()
        first_p, second_p = warp(rows).softmax(-1)
        probabilities.append(first_p[first] * second_p)
    return torch.stack(probabilities)


def draw(small, count, rows=1, **kwargs):
    """The first two tokens of `count` calls of `rows` sequences each."""
    target, draft, prompt = small
    torch.manual_seed(11)
    settings = {
        "attention_mask": torch.ones_like(prompt),
        "do_sample": True,
        "max_new_tokens": 3,
        "num_assistant_tokens": 2,
        "num_return_sequences": rows,
        "assistant_model": draft,
        "top_k": 0,
    }
    calls = [target.generate(prompt, **(settings | kwargs)) for _ in range(count)]
    return torch.cat(calls)[:, prompt.shape[1] :][:, :2]


@pytest.mark.parametrize(
    ("kwargs", "warp", "count", "rows"),
    [
        ({"judge": Always(True), "judge_mode": "alignment-only"}, lambda rows: rows, 500, 1),
        ({"judge": Always(True), "judge_mode": "alignment-only"}, lambda rows: rows, 2, 4000),
        ({"judge": Always(False), "temperature": 0.7, "top_p": 0.8}, temperature_and_top_p, 2, 4000),
    ],
    ids=["alignment-only, one by one", "alignment-only, batch", "two-stage rejecting all, batch"],
)
def test_generate_keeps_the_targets_distribution(small, kwargs, warp, count, rows):
    target, _, prompt = small
    assert p_value(draw(small, count, rows, **kwargs), joint(target, prompt, warp)) > 0.001


@pytest.mark.parametrize(("count", "rows"), [(500, 1), (1, 4000)], ids=["one by one", "batch"])
def test_generate_with_a_wrong_residual_would_show(small, monkeypatch, count, rows):
    right = verification._next_token
    monkeypatch.setattr(
        verification, "_next_token", lambda block, accepted, exact_correction: right(block, accepted, False)
    )
    target, _, prompt = small
    tokens = draw(small, count, rows, judge=Always(True), judge_mode="alignment-only")
    assert p_value(tokens, joint(target, prompt, lambda rows: rows)) < 1e-6


@pytest.mark.parametrize("mode", ["two-stage", "judge-only"])
def test_sampled_drafts_that_a_judge_approves_always_stand(small, mode):
    target, draft, prompt = small
    judge = build_judge(("log_p",), threshold=0.0, hidden_size=16)
    for seed in range(5):
        torch.manual_seed(seed)
        out = target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            assistant_model=draft,
            judge=judge,
            judge_mode=mode,
            do_sample=True,
            top_k=0,
            suppress_tokens=[1, 6],
            max_new_tokens=12,
            num_assistant_tokens=3,
            return_dict_in_generate=True,
        )
        stats = out.judge_stats
        assert (stats.rejected, stats.discarded) == (0, 0)
        assert {1, 6}.isdisjoint(out.sequences[0, 3:].tolist())


def test_the_same_seed_draws_the_same_tokens(small):
    one, two = (draw(small, 20, judge="typical:0.2:0.3") for _ in range(2))
    assert torch.equal(one, two)
    assert len(set(map(tuple, one.tolist()))) > 3


def test_every_pair_of_tokens_can_be_drawn():
    """The world of the tests above is not degenerate: each of the pairs has a chance the test can see."""
    joint_p = World().joint
    assert joint_p.sum() == pytest.approx(1.0)
    assert sum(float(joint_p[a, b]) * DRAWS > 8 for a, b in itertools.product(range(VOCAB), repeat=2)) > 40
