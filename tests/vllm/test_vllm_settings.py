"""The additional config's entry and one request's own value. Needs no vLLM."""

import pytest

from hf_selfjudge.playground import ASSETS
from hf_selfjudge.rules import AllOf, JudgeRule, NeverRelax, TopK
from hf_selfjudge.vllm.approval import OFF
from hf_selfjudge.vllm.settings import Settings, parse_threshold, request_value

JUDGE = str(ASSETS / "judge")


@pytest.fixture(scope="module")
def judge_rule():
    return Settings(judge=JUDGE).rule()


@pytest.mark.parametrize("config", [None, {}, {"other": 1}, {"selfjudge": None}])
def test_without_an_entry_there_are_no_settings(config):
    assert Settings.from_config(config) is None


def test_settings_go_through_the_config_and_back():
    settings = Settings(judge=JUDGE, threshold="f1", require="floor:0.01", never_relax=("digits",))
    assert Settings.from_config(settings.to_config()) == settings
    everything = Settings(judge=JUDGE, threshold=0.0, strict_pair=True)  # a theta of 0 is one, too
    assert Settings.from_config(everything.to_config()) == everything
    assert Settings.from_config({"selfjudge": {"judge": JUDGE, "never_relax": "special"}}).never_relax == ("special",)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("f1", "expected an object"),
        ({}, "a key 'judge'"),
        ({"judge": JUDGE, "treshold": 0.4}, "treshold"),
        ({"judge": ""}, "folder, Hub id or rule spec"),
        ({"judge": 3}, "folder, Hub id or rule spec"),
        ({"judge": JUDGE, "threshold": 1.5}, r"number in \[0, 1\]"),
        ({"judge": JUDGE, "threshold": True}, r"number in \[0, 1\]"),
        ({"judge": JUDGE, "mode": "judge-only"}, "does not exist in vLLM"),
        ({"judge": JUDGE, "mode": "lossy"}, "two-stage"),
        ({"judge": JUDGE, "never_relax": ["names"]}, "digits"),
        ({"judge": JUDGE, "never_relax": 3}, "digits"),
        ({"judge": JUDGE, "require": "nothing:3"}, "Unknown rule"),
        ({"judge": JUDGE, "revision": 3}, "a string"),
        ({"judge": "topk:two"}, "not the numbers"),
        ({"judge": "topk:2", "threshold": 0.4}, "none for rule"),
        ({"judge": "topk:2+digits"}, "never_relax"),
        ({"judge": JUDGE, "require": "floor:0.1+digits"}, "never_relax"),
    ],
)
def test_bad_entries_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        Settings.from_config({"selfjudge": entry})


def test_the_rule_has_everything_asked_for(tokenizer):
    rule = Settings(judge=JUDGE, require="floor:0.01", never_relax=("special",)).rule(tokenizer)
    assert isinstance(rule, NeverRelax)
    assert isinstance(rule.rule, AllOf)
    assert isinstance(rule.rule.rules[0], JudgeRule)
    assert isinstance(Settings(judge="topk:3").rule(), TopK)
    assert Settings(judge=JUDGE, mode="alignment-only").rule() is None


def test_thresholds(judge_rule):
    config = judge_rule.verifier.config
    assert parse_threshold(None, judge_rule) == config.theta()
    assert parse_threshold("youden", judge_rule) == config.thresholds["youden"]
    assert parse_threshold(0.25, judge_rule) == 0.25
    assert parse_threshold(1, judge_rule) == OFF
    assert parse_threshold("off", judge_rule) == OFF
    assert parse_threshold("off", TopK(2)) == OFF
    assert parse_threshold(None, TopK(2)) == 0.0
    assert parse_threshold(0.3, None) == OFF


@pytest.mark.parametrize("value", ["F1", "0.4", 1.2, -0.1, float("nan"), True, [0.4], {"threshold": 0.4}])
def test_bad_thresholds_say_what_is_expected(value, judge_rule):
    with pytest.raises(ValueError, match="off"):
        parse_threshold(value, judge_rule)


def test_a_rule_without_thresholds_says_so():
    with pytest.raises(ValueError, match="has no threshold"):
        parse_threshold(0.4, TopK(2))


def test_a_requests_value():
    assert request_value(None) is None
    assert request_value({"other": 1}) is None
    assert request_value({"selfjudge": "off"}) == "off"
