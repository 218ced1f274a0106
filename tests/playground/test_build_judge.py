"""The playground's judge, made by the pipeline in a tiny setting."""

import json

import pytest
import torch

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.playground import judge as building
from hf_selfjudge.playground.decode import decode
from hf_selfjudge.playground.judge import FEATURE_SETS, BuildSettings, build_judge
from hf_selfjudge.playground.world import generate

SETTINGS = BuildSettings(prompts=4, held_out=0.4, batch_size=32)


@pytest.fixture(scope="module")
def built(embedded):
    return build_judge(embedded, SETTINGS)


def test_the_judge_is_saved_loaded_and_used(built, embedded, tmp_path):
    judge, _ = built
    judge.save_pretrained(tmp_path)
    loaded = SelfJudgeVerifier.from_pretrained(tmp_path)
    assert loaded.config == judge.config
    assert all(torch.equal(value, judge.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert loaded.config.features == FEATURE_SETS["hidden+previous+scalars"]
    assert {"f1", "recall", "youden"} == set(loaded.config.thresholds)
    assert loaded.config.default_threshold == "recall"
    items = generate("news", "test", 2)
    strict, loose = (decode(embedded, items, loaded.with_threshold(theta), batch_size=2) for theta in (1.0, 0.0))
    assert strict.stats.judged_in == 0
    assert loose.stats.judged_in > 0


def test_the_report_says_how_it_was_made(built):
    judge, report = built
    assert json.loads(json.dumps(report)) == report
    assert report["settings"]["prompts"] == 4
    assert report["prompts"] == 16
    assert set(report["validation_auc"]) == set(FEATURE_SETS)
    assert all(0.0 <= auc <= 1.0 for auc in report["validation_auc"].values())
    assert set(report["seconds"]) == {"respond", "mine", "score", "finish", "fit"}
    assert 0.0 < report["acceptable"] < 1.0
    preserved = report["answer_preservation"]
    assert 0 < preserved["answer_changed"] < preserved["tried"] <= report["substitutions"]
    assert judge.config.metrics["substitutions"] == report["substitutions"]
    assert judge.config.labels["tau"] == pytest.approx(report["tau"], abs=1e-3)


def test_two_builds_are_equal(built, embedded):
    judge, report = built
    again, second = build_judge(embedded, SETTINGS)
    assert again.config == judge.config
    assert all(torch.equal(value, judge.state_dict()[name]) for name, value in again.state_dict().items())
    assert {**report, "seconds": None} == {**second, "seconds": None}


def test_columns_follow_the_order_at_hand():
    have = ("hidden", "previous_hidden", "log_p", "rank")
    assert building._columns(have, ("hidden", "rank"), 2) == [0, 1, 5]
    assert building._columns(have, have, 2) == list(range(6))
