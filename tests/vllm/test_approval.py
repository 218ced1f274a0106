"""Flat rows of an engine step against `verify` on each request's own block; counters; groups. Needs no vLLM."""

import pytest
import torch

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.config import JudgeConfig
from hf_selfjudge.features import Block
from hf_selfjudge.rules import JudgeRule, NeverRelax, ProbabilityFloor, TopK, parse_rule
from hf_selfjudge.verification import verify
from hf_selfjudge.vllm import approval
from hf_selfjudge.vllm.approval import COUNTERS, OFF, Approver, DraftRows, at_every_theta, judge_of

VOCAB, HIDDEN = 11, 6
CPU = torch.device("cpu")
ALL_TARGET_FEATURES = ("hidden", "previous_hidden", "next_hidden", "log_p", "rank", "entropy", "margin")
AHEAD_FEATURES = ("ahead_known", "ahead_matches", "next_log_p", "ahead_log_p")


def judge(features, theta=0.5):
    config = JudgeConfig(hidden_size=HIDDEN, features=features, thresholds={"default": theta})
    return SelfJudgeVerifier(config).set_weights(torch.randn(config.input_size), 0.1)


def flat_rows(counts, thetas, with_draft_logits=False, **changes):
    drafts, targets = sum(counts), sum(counts) + len(counts)
    logits = torch.randn(targets, VOCAB)
    keep = torch.cat([torch.tensor([True] * n + [False]) for n in counts])
    values = {
        "draft_tokens": torch.randint(0, VOCAB, (drafts,), dtype=torch.int32),
        "counts": counts,
        "hidden": torch.randn(targets, HIDDEN),
        "logits": logits,
        "scores": logits[keep].clone(),
        "thetas": torch.tensor(thetas),
        "draft_logits": torch.randn(drafts, VOCAB) if with_draft_logits else None,
    }
    return DraftRows(**{**values, **changes})


def blocks(rows):
    """Each request's block, alone."""
    draft, target = 0, 0
    for n in rows.counts:
        q = None if rows.draft_logits is None else rows.draft_logits[None, draft : draft + n]
        yield (
            slice(draft, draft + n),
            Block(
                draft_tokens=rows.draft_tokens[None, draft : draft + n].long(),
                target_logits=rows.logits[None, target : target + n + 1],
                hidden=rows.hidden[None, target : target + n + 1],
                draft_logits=q,
            ),
        )
        draft, target = draft + n, target + n + 1


def greedy_acceptance(rows):
    """How many drafts stock greedy verification takes after the edit."""
    matched = rows.scores.argmax(-1) == rows.draft_tokens
    return [int(matched[part].long().cumprod(0).sum()) for part, _ in blocks(rows)]


@pytest.mark.parametrize(
    "features",
    [
        ("hidden",),
        ("hidden", "ahead_known"),
        ALL_TARGET_FEATURES + AHEAD_FEATURES,
        ALL_TARGET_FEATURES + AHEAD_FEATURES + ("log_q", "kl_pq", "kl_qp"),
    ],
)
def test_a_judge_decides_as_in_the_loop(features):
    rule = JudgeRule(judge(features))
    thetas = [0.5, 0.2, OFF, 0.0, 0.9]
    rows = flat_rows([4, 0, 6, 1, 3], thetas, with_draft_logits="log_q" in features)
    raw = rows.scores.clone()
    verdicts = [
        (part, verify(block, JudgeRule(rule.verifier.with_threshold(theta))))
        for (part, block), theta in zip(blocks(rows), thetas, strict=True)
    ]
    approver = Approver(rule, CPU)
    assert approver.needs_draft_logits == ("log_q" in features)
    step = approver.approve(rows)
    assert greedy_acceptance(rows) == [int(verdict.accepted) for _, verdict in verdicts]
    for part, verdict in verdicts:
        relaxed = verdict.opinion.relaxed[0] & ~verdict.aligned[0]
        assert torch.equal(step.relaxed[part], relaxed)
        untouched = ~verdict.opinion.relaxed[0]
        assert torch.equal(rows.scores[part][untouched], raw[part][untouched])
    assert step.judged.tolist() == [4, 0, 0, 1, 3]


def test_no_judge_looks_behind_the_end_of_a_response():
    rule = JudgeRule(judge(("ahead_known", "ahead_matches", "next_log_p", "ahead_log_p", "next_hidden")))
    end = 3
    tokens = torch.tensor([1, 2, end, 4, 5, 6, end])
    rows = flat_rows([5, 2], [0.5, 0.5], draft_tokens=tokens)
    cut = [block_until(block, end) for _, block in blocks(rows)]
    expected = [verify(block, rule).opinion.relaxed[0] for block in cut]
    approver = Approver(rule, CPU, end_tokens=[end])
    found = approver._opinion(rows, tokens, torch.tensor([5, 2]), torch.tensor([0, 5]))
    assert torch.equal(torch.cat([found[:3], found[5:]]), torch.cat(expected))


def block_until(block, end):
    """The block with nothing behind its first end token."""
    length = block.draft_tokens[0].tolist().index(end) + 1
    return Block(
        draft_tokens=block.draft_tokens[:, :length],
        target_logits=block.target_logits[:, : length + 1],
        hidden=block.hidden[:, : length + 1],
    )


def test_groups_of_requests_decide_as_one(monkeypatch):
    rule = JudgeRule(judge(ALL_TARGET_FEATURES + AHEAD_FEATURES))
    rows = flat_rows([2, 5, 0, 3, 1, 0, 4], [0.4] * 7)
    whole = Approver(rule, CPU).approve(DraftRows(**{**vars(rows), "scores": rows.scores.clone()}))
    monkeypatch.setattr(approval, "MAX_ELEMENTS", 2 * 6 * VOCAB)
    parts = Approver(rule, CPU).approve(rows)
    assert torch.equal(whole.relaxed, parts.relaxed)
    assert whole.relaxed.any()


@pytest.mark.parametrize("spec", ["topk:2", "floor:0.05", "margin:0.3", "typical", "fly:0.1:1"])
def test_training_free_rules_decide_as_in_the_loop(spec):
    rule = parse_rule(spec)
    rows = flat_rows([4, 3, 5], [0.0, OFF, 0.0])
    expected = [
        int(verify(block, rule if index != 1 else None).accepted) for index, (_, block) in enumerate(blocks(rows))
    ]
    Approver(rule, CPU).approve(rows)
    assert greedy_acceptance(rows) == expected


def test_guards_and_required_rules_hold():
    rule = NeverRelax(JudgeRule(judge(("hidden",))) & ProbabilityFloor(0.05), torch.tensor([0, 1, 2]))
    rows = flat_rows([5, 4], [0.0, 0.3])
    expected = [
        int(verify(block, NeverRelax(JudgeRule(rule.rule.rules[0].verifier.with_threshold(theta)) & rule.rule.rules[1],
                                     rule.token_ids)).accepted)
        for (_, block), theta in zip(blocks(rows), [0.0, 0.3], strict=True)
    ]  # fmt: skip
    Approver(rule, CPU).approve(rows)
    assert greedy_acceptance(rows) == expected


def test_forbidden_protected_cut_and_placeholder_rows_stay():
    rows = flat_rows(
        [5],
        [0.0],
        protected=torch.tensor([False, True, False, False, False]),
        draft_tokens=torch.tensor([3, 4, -1, 5, 6]),
    )
    rows.scores[0, 3] = float("-inf")
    final = rows.scores.clone()
    final[3, 5] = float("-inf")
    raw = rows.scores.clone()
    Approver(TopK(VOCAB), CPU).approve(DraftRows(**{**vars(rows), "final_scores": final}))
    assert torch.equal(rows.scores[:4], raw[:4])
    assert rows.scores[4].tolist() == [float("-inf")] * 6 + [0.0] + [float("-inf")] * 4


def test_counters():
    counts, thetas = [3, 0, 4, 2], [0.0, 0.0, OFF, 0.0]
    rows = flat_rows(counts, thetas)
    rows.draft_tokens[0] = rows.scores[0].argmax()
    rows.draft_tokens[1:3] = rows.scores[1:3].argmin(-1)
    approver = Approver(TopK(VOCAB), CPU, slots=8)
    step = approver.approve(rows)
    # the second block stands whole though nothing relaxed it (as if sampled); the last is rejected at once
    approver.count(step, torch.tensor([2, 0, 4, 0]), torch.tensor([5, 6, 7, 5]))
    assert dict(zip(COUNTERS, approver.totals.tolist(), strict=True)) == {
        "drafted": 9,
        "judged": 5,
        "judge_accepted": 1,
        "aligned": 5,
    }
    assert approver.by_slot[5].tolist() == [5, 5, 1, 1]
    assert approver.by_slot[7].tolist() == [4, 0, 0, 4]


def test_the_exact_and_the_empty_step():
    rows = flat_rows([2, 1], [0.0, 0.0])
    raw = rows.scores.clone()
    Approver(None, CPU).approve(rows)
    assert torch.equal(rows.scores, raw)
    nothing = flat_rows([0, 0], [0.0, 0.0])
    approver = Approver(TopK(2), CPU)
    approver.count(approver.approve(nothing), torch.tensor([0, 0]))
    assert approver.totals.sum() == 0


def test_a_judge_behind_any_of_is_refused():
    with pytest.raises(ValueError, match="threshold per request"):
        at_every_theta(JudgeRule(judge(("hidden",))) | TopK(2))
    assert judge_of(TopK(2) | ProbabilityFloor(0.1)) is None


def test_the_edit_wins_a_p_over_q_test_and_leaves_other_rows_their_distribution():
    rows = flat_rows([6], [0.0])
    raw = rows.scores.clone()
    Approver(TopK(5), CPU).approve(rows)
    p = rows.scores.softmax(-1)
    taken = torch.isinf(rows.scores).any(-1)
    assert taken.any()
    assert not taken.all()
    at_draft = p.gather(1, rows.draft_tokens.long()[:, None])[:, 0]
    assert torch.equal(at_draft[taken], torch.ones(int(taken.sum())))
    assert torch.equal(p[~taken], raw.softmax(-1)[~taken])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_a_gpu_does_not_wait():
    """As on the CPU, and without one synchronisation; more protected tokens than torch.isin compares directly."""
    features = ALL_TARGET_FEATURES + AHEAD_FEATURES + ("log_q", "kl_pq", "kl_qp")
    rule = NeverRelax(JudgeRule(judge(features)) & ProbabilityFloor(0.01), torch.arange(0, 2000, 7))
    rows = flat_rows([4, 0, 6, 1, 3], [0.2, 0.2, OFF, 0.0, 0.4], with_draft_logits=True)
    rows = DraftRows(**{**vars(rows), "lengths": torch.tensor(rows.counts)})
    device = torch.device("cuda")
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(rows).items()}
    accepted, slots = torch.tensor([2, 0, 1, 1, 3]), torch.arange(5)
    totals = []
    for step, where in ((rows, CPU), (DraftRows(**moved), device)):
        approver = Approver(rule, where, end_tokens=[3])
        kept, at = accepted.to(where), slots.to(where)
        if where == device:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            approver.count(approver.approve(step), kept, at)
        finally:
            if where == device:
                torch.cuda.set_sync_debug_mode("default")
        totals.append(approver.totals.tolist())
    assert totals[0] == totals[1]
