"""Hand-made cases for every rule, combinations, specs and the restrictions of never_relax."""

import math

import pytest
import torch
from tiny import Always, build_judge

from hf_selfjudge import never_relax
from hf_selfjudge.features import Block
from hf_selfjudge.rules import (
    RULES,
    AllOf,
    AnyOf,
    ExactMatch,
    JudgeRule,
    KLThreshold,
    Margin,
    ProbabilityFloor,
    Rule,
    TopK,
    Typical,
    as_rule,
    is_spec,
    parse_rule,
)

P = [0.4, 0.3, 0.2, 0.06, 0.04]  # every position's target distribution in the cases below
Q = [0.1, 0.1, 0.2, 0.2, 0.4]


def block(tokens, p=P, q=Q, uniforms=None, rows=None):
    """A block of drafted tokens with the same distributions everywhere, or with `rows` of target distributions."""
    gamma = len(tokens)
    target = torch.tensor([*rows, p] if rows else [p] * (gamma + 1)).log()[None]
    return Block(
        torch.tensor([tokens]),
        target,
        torch.zeros(1, gamma + 1, 2),
        torch.tensor([q] * gamma).log()[None] if q else None,
        uniforms=None if uniforms is None else torch.tensor([uniforms]),
    )


ALL = [0, 1, 2, 3, 4]
KL_PQ = sum(p * math.log(p / q) for p, q in zip(P, Q, strict=True))
KL_QP = sum(q * math.log(q / p) for p, q in zip(P, Q, strict=True))


@pytest.mark.parametrize(
    ("spec", "accepted"),
    [
        ("exact", [0]),
        ("rejection", [0]),
        ("topk:1", [0]),
        ("topk", [0, 1]),
        ("topk:4", [0, 1, 2, 3]),
        ("topk:9", ALL),
        ("floor", ALL),
        ("floor:0.05", [0, 1, 2, 3]),
        ("floor:0.35", [0]),
        ("floor:0", ALL),
        ("floor:1", []),
        ("margin", [0, 1]),
        ("margin:0.05", [0]),
        ("margin:0.25:5", [0, 1, 2]),
        ("typical:0.09:0.3", [0, 1, 2]),  # 0.3 * exp(-H) = 0.078 < 0.09
        ("typical:0.05:0.3", [0, 1, 2, 3]),
        ("typical:1:1.2", [0]),  # 1.2 * exp(-H) = 0.312
        (f"kl:{KL_PQ + 1e-3}", ALL),
        (f"kl:{KL_PQ - 1e-3}", []),
        (f"reverse-kl:{KL_QP + 1e-3}", ALL),
        (f"reverse-kl:{KL_QP - 1e-3}", []),
        ("ensemble:1", [0]),
        ("ensemble:0", [4]),
        ("ensemble:0.6", [0]),  # 0.28 for token 0, 0.184 for token 4
        ("ensemble:0.3", [4]),  # 0.19 for token 0, 0.292 for token 4
    ],
)
def test_hand_made_cases(spec, accepted):
    mask = parse_rule(spec).accept(block(ALL))
    assert mask.dtype == torch.bool
    assert [token for token in ALL if mask[0, token]] == accepted


def test_rejection_sampling_compares_u_with_p_over_q():
    # p/q = 4, 3, 1, 0.3, 0.1
    high, low = [0.99, 0.99, 0.99, 0.31, 0.11], [0.99, 0.99, 0.99, 0.29, 0.09]
    rule = parse_rule("rejection")
    assert rule.accept(block(ALL, uniforms=high)).tolist() == [[True, True, True, False, False]]
    assert rule.accept(block(ALL, uniforms=low)).tolist() == [[True] * 5]
    # a drafter without a distribution is certain: u < p
    assert rule.accept(block(ALL, q=None, uniforms=[0.39, 0.31, 0.19, 0.07, 0.03])).tolist() == [
        [True, False, True, False, True]
    ]


def test_the_sampled_ensemble_mixes_the_ratio():
    # 1 - w + w * p / q for w = 0.5: 0.65 for token 3, 0.55 for token 4
    rule = parse_rule("ensemble:0.5")
    assert rule.accept(block([3, 4], uniforms=[0.64, 0.54])).all()
    assert not rule.accept(block([3, 4], uniforms=[0.66, 0.56])).any()


def test_fly_wants_an_unsure_target_and_matches_behind():
    unsure, sure, match = [0.35, 0.33, 0.3, 0.01, 0.01], [0.9, 0.05, 0.03, 0.01, 0.01], 0
    rule = parse_rule("fly:0.3:2")
    assert rule.accept(block([1, match, match], rows=[unsure, P, P])).tolist() == [[True, True, True]]
    assert rule.accept(block([1, match, 2], rows=[unsure, sure, P])).tolist() == [[False, True, False]]
    top3 = [x / 0.98 for x in sure[:3]]
    assert -sum(x * math.log(x) for x in top3) / math.log(3) == pytest.approx(0.30, abs=0.02)
    assert rule.accept(block([1, match], rows=[unsure, P])).tolist() == [[False, True]]  # the window leaves the block
    for bound, accepted in ((0.25, True), (0.4, False)):
        found = parse_rule(f"fly:{bound}:1").accept(block([1, match], rows=[sure, P]))
        assert found.tolist() == [[accepted, True]]


def test_ties_count_in_favour_of_the_drafted_token():
    assert TopK(1).accept(block([0, 1, 2], p=[0.4, 0.4, 0.2])).tolist() == [[True, True, False]]
    assert Margin(0.0).accept(block([0, 1, 2], p=[0.4, 0.4, 0.2])).tolist() == [[True, True, False]]


def test_rules_read_scores_and_impossible_tokens_are_finite():
    scores = torch.tensor([[[0.0, float("-inf"), -1.0]] * 3])
    given = Block(torch.tensor([[1, 2]]), torch.zeros(1, 3, 3), torch.zeros(1, 3, 2), torch.zeros(1, 2, 3), scores)
    for spec in RULES:
        assert parse_rule(spec).accept(given).shape == (1, 2)
    assert TopK(1).accept(given).tolist() == [[False, False]]
    assert TopK(2).accept(given).tolist() == [[False, True]]
    assert Typical().accept(given).tolist() == [[False, True]]


@pytest.mark.parametrize("spec", RULES)
def test_rules_say_whether_they_need_the_draft(spec):
    rule = parse_rule(spec)
    if rule.needs_draft_logits:
        with pytest.raises(ValueError, match="needs the draft's logits"):
            rule.accept(block(ALL, q=None))
    else:
        assert torch.equal(rule.accept(block(ALL, q=None)), rule.accept(block(ALL)))


def test_combinations():
    two, four, kl = TopK(2), TopK(4), KLThreshold(0.5)
    assert (two | four).accept(block(ALL)).sum() == 4
    assert (two & four).accept(block(ALL)).sum() == 2
    assert isinstance(two | four, AnyOf)
    assert isinstance(two & four, AllOf)
    assert (two | kl).needs_draft_logits
    assert not (two & four).needs_draft_logits
    judge = JudgeRule(build_judge(("log_p",), hidden_size=2))
    mask, probability = (two | judge).weigh(block(ALL))
    assert torch.equal(probability, judge.verifier(block(ALL)))
    assert torch.equal(mask, two.accept(block(ALL)) | judge.accept(block(ALL)))
    assert two.weigh(block(ALL))[1] is None


@pytest.mark.parametrize("spec", ["topk:2", "fly:0.3:5", "typical:0.1:0.2", "reverse-kl:1.5", "margin:0.1:3", "exact"])
def test_good_specs(spec):
    assert isinstance(parse_rule(spec), Rule)
    assert as_rule(spec) == parse_rule(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("top-k", "Unknown rule 'top-k'"),
        ("", "empty part"),
        ("topk:2&", "empty part"),
        ("topk:2+letters", "the guard .letters.; expected one of digits, special"),
        ("topk:2+digits", "'digits', which needs tokenizer="),
        ("topk:2&top", "Unknown rule 'top' in 'topk:2&top'"),
        ("judge:@f1", "expected judge:FOLDER"),
        ("judge:folder@", "expected judge:FOLDER"),
        (":2", "Unknown rule"),
        ("topk:two", "not the numbers"),
        ("topk:", "not the numbers"),
        ("topk:2.5", "not the numbers"),
        ("topk:2:3", "at most 1"),
        ("exact:1", "at most 0"),
        ("topk:0", "k is 0, expected an int >= 1"),
        ("floor:1.5", "floor is 1.5"),
        ("floor:nan", "floor is nan"),
        ("margin:-1", "delta is -1.0"),
        ("margin:0.1:0", "k is 0"),
        ("typical:2", "epsilon is 2.0"),
        ("typical:0.1:-1", "delta is -1.0"),
        ("kl:-1", "limit is -1.0"),
        ("kl:nan", "limit is nan"),
        ("ensemble:1.1", "weight is 1.1"),
        ("fly:2", "entropy_threshold is 2.0"),
        ("fly:0.3:0", "window is 0"),
        ("fly:0.3:5:1", "top is 1"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_rule(spec)


def test_combined_specs(tokenizer, tmp_path):
    judge = build_judge(("log_p",), hidden_size=2)
    judge.save_pretrained(tmp_path / "judge")
    rule = as_rule(f"judge:{tmp_path / 'judge'}@0.3&floor:0.1|topk:2+digits+special", tokenizer)
    special, digits, combined = rule, rule.rule, rule.rule.rule
    assert special.token_ids.tolist() == [0, 1, 2, 3]
    assert digits.token_ids.tolist() == never_relax("exact", "digits", tokenizer).token_ids.tolist()
    assert isinstance(combined, AnyOf)
    both, top = combined.rules
    assert isinstance(both, AllOf)
    assert both.rules[1] == ProbabilityFloor(0.1)
    assert both.rules[0].verifier.threshold == 0.3
    assert top == TopK(2)
    by_hand = (JudgeRule(judge.with_threshold(0.3)) & ProbabilityFloor(0.1)) | TopK(2)
    assert torch.equal(combined.accept(block(ALL)), by_hand.accept(block(ALL)))
    default = as_rule(f"judge:{tmp_path / 'judge'}")
    assert default.verifier.threshold == judge.threshold


@pytest.mark.parametrize(
    ("text", "expected"),
    [("topk:2", True), ("exact", True), ("exact+digits", True), ("exact|topk", True), ("me/it", False), ("j", False)],
)
def test_what_is_a_spec(text, expected):
    assert is_spec(text) is expected


def test_as_rule(tmp_path):
    judge = build_judge(("log_p",))
    assert as_rule(judge).verifier is judge
    assert as_rule(ExactMatch()) == ExactMatch()
    judge.save_pretrained(tmp_path / "topk:2")  # a path is a folder, whatever its name
    assert torch.equal(as_rule(tmp_path / "topk:2").verifier.layers[0].weight, judge.layers[0].weight)
    for wrong in (3, None, [judge], TopK):
        with pytest.raises(TypeError, match="judge= got"):
            as_rule(wrong)


def test_never_relax_by_ids():
    rule = never_relax(Always(True), [1, 4])
    # position 2 drafts a protected token, position 3 would replace one
    rows = [P, P, P, [0.1, 0.5, 0.2, 0.1, 0.1], P]
    assert rule.accept(block([0, 2, 1, 3, 3], rows=rows)).tolist() == [[True, True, False, False, True]]
    assert never_relax("topk", range(0)).accept(block(ALL)).sum() == 2
    assert never_relax("kl", [1]).needs_draft_logits


def test_never_relax_by_text(tokenizer):
    vocab = tokenizer.get_vocab()
    digits = never_relax("topk", "digits", tokenizer)
    assert digits.token_ids.tolist() == sorted(vocab[digit] for digit in "0123456789")
    special = never_relax("topk", "special", tokenizer)
    assert special.token_ids.tolist() == [0, 1, 2, 3]
    spaced = never_relax("topk", lambda text: text.startswith(" "), tokenizer)
    assert spaced.token_ids.tolist() == sorted(index for token, index in vocab.items() if token.startswith("Ġ"))
    with pytest.raises(ValueError, match="needs tokenizer="):
        never_relax("topk", "digits")
    with pytest.raises(ValueError, match="no tokens named 'letters'"):
        never_relax("topk", "letters", tokenizer)


def test_a_judge_accepts_strictly_above_theta():
    judge = build_judge(("log_p",), hidden_size=2).set_weights(torch.zeros(1), 0.0)
    rule = JudgeRule(judge.with_threshold(0.5))
    assert not rule.accept(block(ALL)).any()  # P(acceptable) is 0.5 everywhere
    assert JudgeRule(judge.with_threshold(0.4999)).accept(block(ALL)).all()
    sure = build_judge(("log_p",), hidden_size=2).set_weights(torch.zeros(1), 1e4).with_threshold(1.0)
    assert sure(block(ALL)).eq(1.0).all()
    assert not JudgeRule(sure).accept(block(ALL)).any()  # theta = 1 accepts nothing, however sure the judge


def test_rules_move_to_a_device():
    meta = torch.device("meta")
    judge = build_judge(("log_p",), threshold=0.3)
    moved = (never_relax(judge, [1, 2]) | TopK(3)).to(meta)
    assert moved.rules[0].token_ids.device == meta
    assert moved.rules[0].rule.verifier.device == meta
    assert moved.rules[0].rule.verifier.threshold == 0.3
    assert judge.device == torch.device("cpu")  # the caller's own stays
    assert as_rule(judge).to(torch.device("cpu")).verifier is judge
