"""The grammar of rules: what every form means, and one clear error for everything else."""

import pytest
import torch

from hf_selfjudge.evaluation.grammar import SWEEPS, Point, parse_rules, parse_spec
from hf_selfjudge.evaluation.judges import Judges, Recorder, sweep_thetas
from hf_selfjudge.evaluation.plan import judge_labels, shorten
from hf_selfjudge.features import Block
from hf_selfjudge.rules import AllOf, AnyOf, JudgeRule, NeverRelax, ProbabilityFloor, TopK, parse_rule
from hf_selfjudge.rules.spec import split_judge


def points(text, gamma=5, **thetas):
    return [point.spec for point in parse_spec(text, gamma).points(thetas)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topk:2", ["topk:2"]),
        ("topk", ["topk"]),
        ("topk:2..4", ["topk:2", "topk:3", "topk:4"]),
        ("floor:0.1/0.01", ["floor:0.1", "floor:0.01"]),
        ("margin:0.3:2..3", ["margin:0.3:2", "margin:0.3:3"]),
        ("fly:0.1/0.3:1/2", ["fly:0.1:1", "fly:0.1:2", "fly:0.3:1", "fly:0.3:2"]),
        ("topk:2/3&floor:0.1/0.2", [f"topk:{k}&floor:{p}" for k in (2, 3) for p in (0.1, 0.2)]),
        ("topk:3&floor:0.01|kl:0.1+digits", ["topk:3&floor:0.01|kl:0.1+digits"]),
        ("ours=topk:2+digits+special", ["topk:2+digits+special"]),
        ("judge:some/folder", ["judge:some/folder"]),
        ("judge:my+judge@f1", ["judge:my+judge@f1"]),
        ("judge:J@f1/0.9", ["judge:J@f1", "judge:J@0.9"]),
        ("judge:a@b@0.5", ["judge:a@b@0.5"]),
        ("judge:J@sweep&floor:0.01+digits", ["judge:J@0.9&floor:0.01+digits", "judge:J@0.25&floor:0.01+digits"]),
    ],
)
def test_what_is_in_the_grammar(text, expected):
    assert points(text, J=[0.9, 0.25]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty part"),
        ("topk:2&", "empty part"),
        ("topp:2", "Unknown rule 'topp:2'.*topk"),
        ("topk:0", "k is 0, expected an int >= 1"),
        ("topk:2.5", "not the numbers that topk takes"),
        ("topk:5..2", "goes down"),
        ("topk:2:3", "takes at most 1"),
        ("floor:2", "floor is 2.0, expected a probability"),
        ("exact:sweep", "exact has no number to sweep"),
        ("topk:2+letters", "guard 'letters'; expected one of digits, special"),
        ("judge:J@f1+letters", "guard 'letters'"),
        ("judge:", "expected judge:FOLDER"),
        ("judge:J@", "expected judge:FOLDER"),
        ("judge:J@1.5", "threshold '1.5', expected a theta"),
        ("judge:J@0.5/", "threshold '', expected a theta"),
    ],
)
def test_what_is_not(text, message):
    with pytest.raises(ValueError, match=message) as refused:
        parse_rules([f"exact,{text}"], 5)
    assert "\n" not in str(refused.value)


def test_exact_comes_first_and_once():
    specs = parse_rules(["topk:2,exact", "floor:0.1"], 5)
    assert [spec.method for spec in specs] == ["exact", "topk", "floor"]


def test_numbers_do_not_make_a_method_but_names_do():
    specs = parse_rules(
        ["topk:2,topk:3..4,top ten=topk:10,judge:J@f1&floor:0.1+digits,judge:J@0.2&floor:0.3+digits"], 5
    )
    names = [spec.method for spec in specs]
    assert names == ["exact", "topk", "topk", "top ten", *["judge:J&floor+digits"] * 2]


def test_every_sweep_is_valid_from_strict_to_lax_and_fits_the_block():
    for name, tails in SWEEPS.items():
        assert points(f"{name}:sweep") == [f"{name}:{tail}" for tail in tails if name != "fly" or int(tail[-1]) < 5]
        for tail in tails:
            parse_rule(f"{name}:{tail}")
    assert {point.rsplit(":", 1)[1] for point in points("fly:sweep", gamma=3)} == {"1", "2"}
    for rule, gamma in (("fly:sweep", 1), ("fly:0.3:5", 5), ("topk:2|fly:0.3:1/3", 3)):
        with pytest.raises(ValueError, match=f"behind a mismatch, and blocks have {gamma}"):
            points(rule, gamma=gamma)


def test_training_free_stands_for_all_sweeps():
    specs = parse_rules(["training-free+digits"], 5)
    assert [spec.method for spec in specs] == ["exact", *(f"{name}+digits" for name in SWEEPS)]
    assert specs[1].points({}) == parse_spec("topk:sweep+digits", 5).points({})
    assert "fly" not in [spec.method for spec in parse_rules(["training-free"], 1)]


def test_folder_and_threshold():
    assert split_judge("judge:a/b@f1") == ("a/b", "f1")
    assert split_judge("judge:a/b") == ("a/b", None)


def test_judges_get_short_names_where_these_are_unique():
    specs = parse_rules(["judge:x/one@f1,judge:x/two@f1,judge:y/two@f1"], 5)
    names = judge_labels(specs)
    assert names == {"x/one": "one", "x/two": "x/two", "y/two": "y/two"}
    assert shorten("judge:x/one@f1&judge:x/oneself@f1+digits", names) == "judge:one@f1&judge:x/oneself@f1+digits"


def test_points_become_rules(embedded):
    judges = Judges()
    (point,) = parse_spec("judge:playground@f1&floor:0.01|topk:2+digits", 5).points({})
    rule = judges.rule(point, embedded[2])
    assert isinstance(rule, NeverRelax)
    assert isinstance(rule.rule, AnyOf)
    both, top = rule.rule.rules
    assert isinstance(both, AllOf)
    assert both.rules[1:] == (ProbabilityFloor(0.01),)
    assert top == TopK(2)
    assert isinstance(both.rules[0], JudgeRule)
    assert both.rules[0].verifier.threshold == judges["playground"].config.thresholds["f1"]
    digits = [token for token in range(len(embedded[2])) if any(c.isdigit() for c in embedded[2].decode([token]))]
    assert rule.token_ids.tolist() == digits


def test_a_judges_identity_is_its_weights_and_theta():
    judges = Judges()
    theta = judges["playground"].config.thresholds["f1"]
    by_name, by_theta, other = (
        judges.identity(Point("", ((f"judge:playground@{at}",),))) for at in ("f1", repr(theta), "0.5")
    )
    assert by_name == by_theta != other
    judges["playground"].layers[0].weight[0, 0] += 1
    assert judges.identity(Point("", (("judge:playground@f1",),))) != by_name


def test_an_unknown_threshold_is_refused():
    with pytest.raises(ValueError, match="no threshold named 'best'"):
        Judges().identity(Point("", (("judge:playground@best",),)))


class Fixed:
    """Stands in for a judge: P is given."""

    device = torch.device("cpu")
    threshold = 0.5

    def __init__(self, probability):
        self.probability = probability

    def __call__(self, block):
        return self.probability


def test_the_recorder_keeps_p_where_exact_verification_stops():
    # the target always says 3; rows: stops at 1, stops at 0, all match, stops at 2 behind the end of a shorter draft
    logits = torch.zeros(4, 4, 5)
    logits[..., 3] = 1.0
    tokens = torch.tensor([[3, 1, 3], [2, 2, 3], [3, 3, 3], [3, 3, 0]])
    block = Block(tokens, logits, torch.zeros(4, 4, 2), lengths=torch.tensor([3, 3, 3, 2]))
    recorder = Recorder({"J": Fixed(torch.arange(12.0).reshape(4, 3))})
    assert not recorder.accept(block).any()
    assert recorder.probabilities == {"J": [1.0, 3.0]}


def test_swept_thetas_accept_spread_shares():
    values = torch.linspace(0, 1, 1001).tolist()
    thetas = sweep_thetas(values, named=[0.123])
    assert thetas == sorted(thetas, reverse=True)
    assert 0.123 in thetas
    assert [sum(value > theta for value in values) for theta in thetas if theta != 0.123] == pytest.approx(
        [50, 100, 200, 300, 400, 500, 600, 650, 700, 750, 800, 850, 900, 950], abs=1
    )
    with pytest.raises(ValueError, match="nothing to sweep"):
        sweep_thetas([])
