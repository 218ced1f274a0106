"""`verify` on random blocks: who accepts what in each mode, forbidden tokens, and `approve` with stock acceptance."""

from dataclasses import replace

import pytest
import torch
from tiny import Always, build_judge

from hf_selfjudge import never_relax
from hf_selfjudge.features import Block
from hf_selfjudge.rules import JudgeRule, Rule, parse_rule
from hf_selfjudge.verification import approve, verify

VOCAB = 12


class Mask(Rule):
    """Accepts what it is told to."""

    def __init__(self, mask):
        self.mask = mask

    def accept(self, block):
        return self.mask


def random_block(batch=64, gamma=5, sampling=False, drafter=True, forbid=0.0):
    target = torch.randn(batch, gamma + 1, VOCAB) * 2
    draft = target[:, :-1] + torch.randn(batch, gamma, VOCAB)
    tokens = draft.argmax(-1) if not sampling else torch.distributions.Categorical(logits=draft).sample()
    scores = target.masked_fill(torch.rand(target.shape) < forbid, float("-inf"))
    return Block(
        draft_tokens=tokens,
        target_logits=target,
        hidden=torch.randn(batch, gamma + 1, 4),
        draft_logits=draft if drafter else None,
        target_scores=scores,
        draft_scores=draft if drafter else None,
        uniforms=torch.rand(batch, gamma) if sampling else None,
    )


def emitted(block, verdict):
    """Each row's new tokens."""
    counts = verdict.accepted.tolist()
    return [
        [*block.draft_tokens[row, :count].tolist(), int(verdict.next_token[row])] for row, count in enumerate(counts)
    ]


@pytest.mark.parametrize("mode", ["two-stage", "judge-only", "alignment-only"])
def test_the_first_token_nobody_accepts_ends_a_greedy_block(mode):
    block = random_block()
    mask = torch.rand(block.draft_tokens.shape) < 0.5
    verdict = verify(block, Mask(mask), mode)
    for row, tokens in enumerate(emitted(block, verdict)):
        expected = []
        for j, token in enumerate(block.draft_tokens[row].tolist()):
            choice = int(block.target_scores[row, j].argmax())
            aligned, judged = token == choice, bool(mask[row, j])
            stands = {"two-stage": aligned or judged, "judge-only": judged, "alignment-only": aligned}[mode]
            if not stands:
                break
            expected.append(token)
        expected.append(int(block.target_scores[row, len(expected)].argmax()))
        assert tokens == expected


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("mode", ["two-stage", "judge-only"])
def test_approved_tokens_are_taken_and_forbidden_ones_never(mode, sampling):
    block = random_block(batch=256, sampling=sampling, forbid=0.3)
    verdict = verify(block, Always(True), mode)
    p = block.target_scores[:, :-1].gather(-1, block.draft_tokens.unsqueeze(-1)).squeeze(-1)
    permitted = p != float("-inf")
    assert torch.equal(verdict.accepted, permitted.long().cumprod(-1).sum(-1))
    assert 0 < int((verdict.accepted == 5).sum()) < 256
    for row, tokens in enumerate(emitted(block, verdict)):
        assert all(block.target_scores[row, j, token] > float("-inf") for j, token in enumerate(tokens))


@pytest.mark.parametrize("rule", [None, Always(False)])
@pytest.mark.parametrize("sampling", [False, True])
def test_no_rule_is_a_rule_that_accepts_nothing(rule, sampling):
    block = random_block(sampling=sampling)
    for mode in ("two-stage", "alignment-only"):
        torch.manual_seed(1)
        verdict = verify(block, rule, mode)
        torch.manual_seed(1)
        exact = verify(block, Always(True), "alignment-only")
        assert torch.equal(verdict.accepted, exact.accepted)
        assert torch.equal(verdict.next_token, exact.next_token)
    assert verify(block, rule, "judge-only").accepted.eq(0).all()


@pytest.mark.parametrize("sampling", [False, True])
def test_an_empty_block_gives_the_targets_token(sampling):
    scores = torch.full((3, 1, VOCAB), float("-inf"))
    scores[range(3), 0, [4, 5, 6]] = 0.0
    block = Block(
        draft_tokens=torch.zeros(3, 0, dtype=torch.long),
        target_logits=scores,
        hidden=torch.zeros(3, 1, 4),
        uniforms=torch.rand(3, 0) if sampling else None,
    )
    for mode in ("two-stage", "judge-only", "alignment-only"):
        verdict = verify(block, Always(True), mode)
        assert verdict.accepted.tolist() == [0, 0, 0]
        assert verdict.next_token.tolist() == [4, 5, 6]


def stock_greedy(scores, draft_tokens):
    """transformers' greedy acceptance: the drafted tokens up to the first that is not the argmax."""
    return (draft_tokens == scores[:, :-1].argmax(-1)).long().cumprod(-1).sum(-1)


def stock_sampling(scores, draft_scores, draft_tokens, uniforms):
    """The p/q test of speculative sampling, row by row."""
    counts = []
    p, q = scores.softmax(-1), draft_scores.softmax(-1)
    for row, tokens in enumerate(draft_tokens.tolist()):
        count = 0
        while count < len(tokens):
            ratio = p[row, count, tokens[count]] / q[row, count, tokens[count]]
            if uniforms[row, count] > ratio:
                break
            count += 1
        counts.append(count)
    return torch.tensor(counts)


@pytest.mark.parametrize("sampling", [False, True])
def test_stock_acceptance_of_approved_scores_equals_two_stage(sampling):
    block = random_block(batch=300, sampling=sampling, forbid=0.1)
    mask = torch.rand(block.draft_tokens.shape) < 0.4
    verdict = verify(block, Mask(mask), "two-stage")
    edited = approve(block.target_scores, block.draft_tokens, mask)
    if sampling:
        counts = stock_sampling(edited, block.draft_scores, block.draft_tokens, block.uniforms)
    else:
        counts = stock_greedy(edited, block.draft_tokens)
        rows = torch.arange(300)
        assert torch.equal(edited[rows, counts].argmax(-1), verdict.next_token)
    assert torch.equal(counts, verdict.accepted)
    # the row that the next token is drawn from, rejected or bonus, is still the target's own
    rows = torch.arange(300)
    assert torch.equal(edited[rows, counts], block.target_scores[rows, counts])
    assert 0 < int((counts > stock_greedy(block.target_scores, block.draft_tokens)).sum()) < 300


def test_approve_edits_only_approved_and_permitted_rows():
    scores = torch.tensor([[[1.0, 2.0, 3.0], [1.0, float("-inf"), 3.0], [0.5, 0.1, 0.2]]])
    tokens = torch.tensor([[0, 1]])
    edited = approve(scores, tokens, torch.tensor([[True, True]]))
    assert edited.softmax(-1)[0, 0].tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(edited[0, 1:], scores[0, 1:])
    assert torch.equal(approve(scores, tokens, torch.tensor([[False, False]])), scores)
    assert scores[0, 0, 2] == 3.0  # a copy


def test_verify_reads_scores_not_logits():
    logits = torch.tensor([[[5.0, 0.0, 0.0], [5.0, 0.0, 0.0]]])
    scores = torch.tensor([[[0.0, 5.0, 0.0], [0.0, 0.0, 5.0]]])
    block = Block(torch.tensor([[1]]), logits, torch.zeros(1, 2, 4), target_scores=scores)
    verdict = verify(block, None)
    assert (verdict.accepted.item(), verdict.next_token.item()) == (1, 2)


def large_block(rows=42, gamma=6, seed=0, sampled=False):
    """A block whose draft agrees with the target in many places, with rows of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, gamma + 1, 40, generator=generator) * 3
    draft = logits[:, :-1] + torch.randn(rows, gamma, 40, generator=generator)
    tokens = torch.where(
        torch.rand(rows, gamma, generator=generator) < 0.6, logits[:, :-1].argmax(-1), draft.topk(2).indices[..., 1]
    )
    return Block(
        tokens,
        logits,
        torch.randn(rows, gamma + 1, 32, generator=generator),
        draft,
        target_scores=logits / 0.8,
        draft_scores=draft / 0.8,
        uniforms=torch.rand(rows, gamma, generator=generator) if sampled else None,
        lengths=torch.tensor([gamma, gamma, 2, gamma, 0, gamma, 4]).repeat(6),
    )


PLACE_RULES = ["exact", "topk:3", "floor:0.05", "margin:0.4:3", "typical:0.1:0.3", "kl:0.4", "reverse-kl:0.4"]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("spec", [*PLACE_RULES, "ensemble:0.5", "judge", "both", "guarded"])
def test_a_large_block_is_asked_about_only_where_it_matters_with_the_same_verdict(spec, sampled, monkeypatch):
    block, judge = large_block(sampled=sampled), JudgeRule(build_judge(threshold=0.5))
    rules = {"judge": judge, "both": judge | parse_rule("topk:2"), "guarded": never_relax(judge, range(0, 40, 3))}
    rule = rules[spec] if spec in rules else parse_rule(spec)
    small = verify(block, rule)
    asked = []
    weigh = type(rule).weigh
    monkeypatch.setattr(
        type(rule), "weigh", lambda self, seen: asked.append(len(seen.draft_tokens)) or weigh(self, seen)
    )
    monkeypatch.setattr("hf_selfjudge.verification.LARGE", 0)
    monkeypatch.setattr("hf_selfjudge.features.LARGE", 0)
    large = verify(block, rule)
    assert asked[0] == int((~small.aligned & block.drafted).sum())
    assert torch.equal(large.accepted, small.accepted)
    matters = ~small.aligned & block.drafted
    assert torch.equal(large.opinion.relaxed[matters], small.opinion.relaxed[matters])
    assert bool(small.opinion.relaxed[matters].any()) or spec in ("exact", "ensemble:0.5")
    if spec == "judge":
        assert torch.allclose(large.opinion.probability[matters], small.opinion.probability[matters], atol=1e-6)


def test_a_rule_that_looks_around_sees_the_whole_large_block(monkeypatch):
    monkeypatch.setattr("hf_selfjudge.verification.LARGE", 0)
    block, rule = large_block(), parse_rule("fly:0:2")
    assert torch.equal(verify(block, rule).opinion.relaxed, rule.accept(block))


def test_a_large_block_that_matches_everywhere(monkeypatch):
    monkeypatch.setattr("hf_selfjudge.verification.LARGE", 0)
    block = large_block()
    block = replace(block, draft_tokens=block.target_choice)
    assert verify(block, JudgeRule(build_judge())).accepted.tolist() == [6, 6, 2, 6, 0, 6, 4] * 6
