"""Thetas and slots of requests that come, stay, end and come again. Needs no vLLM."""

import pytest
import torch

from hf_selfjudge.playground import ASSETS
from hf_selfjudge.rules import TopK
from hf_selfjudge.vllm.approval import OFF, Approver
from hf_selfjudge.vllm.requests import Requests
from hf_selfjudge.vllm.settings import Settings
from hf_selfjudge.vllm.worker import SelfJudge


@pytest.fixture(scope="module")
def rule():
    return Settings(judge=str(ASSETS / "judge")).rule()


def book(rule, slots=4, threshold=0.3):
    return Requests(Approver(rule, torch.device("cpu"), slots), rule, threshold)


def values(**asked):
    return lambda request: None if request not in asked else {"selfjudge": asked[request]}


def thetas(requests):
    return [pytest.approx(theta) for theta in requests.thetas.tolist()]


def test_thetas_follow_the_batchs_order(rule):
    requests = book(rule)
    requests.update(["a", "b", "c"], values(b="off", c=0.25))
    assert thetas(requests) == [0.3, OFF, 0.25]
    requests.update(["c", "a"], values())
    assert thetas(requests) == [0.25, 0.3]
    assert requests.relaxes
    requests.update(["b"], values())
    assert not requests.relaxes


def test_retuning_changes_only_requests_without_their_own(rule):
    requests = book(rule)
    requests.update(["a", "b"], values(b=0.25))
    requests.retune(0.8)
    requests.update(["a", "b"], values())
    assert thetas(requests) == [0.8, 0.25]


def test_a_bad_value_makes_that_request_exact(rule, caplog):
    requests = book(rule)
    requests.update(["a", "b"], values(a="F1"))
    assert thetas(requests) == [OFF, 0.3]
    assert requests.refused == 1
    assert "Request a is decoded exactly" in caplog.text


def test_slots_are_those_of_the_oldest_that_do_not_run(rule):
    requests = book(rule, slots=3)
    requests.update(["a", "b", "c"], values())
    first = dict(zip("abc", requests.slots.tolist(), strict=True))
    requests.approver.by_slot += 7
    requests.update(["a", "c", "d"], values())
    assert requests.slots.tolist() == [first["a"], first["c"], first["b"]]
    counts = {name: one["drafted"] for name, one in requests.statistics(per_request=True)["requests"].items()}
    assert counts == {"a": 7, "c": 7, "d": 0}
    with pytest.raises(RuntimeError, match="3 running requests"):
        requests.update(["a", "c", "d", "e"], values())


def test_an_id_may_come_again_with_another_value(rule):
    requests = book(rule)
    requests.update(["a", "b"], values(a="off"))
    requests.finish(["a", "unknown"])
    assert "a" in requests.statistics(per_request=True)["requests"]
    requests.update(["a", "b"], values(a=0.25))
    assert thetas(requests) == [0.25, 0.3]
    requests.update(["b", "a"], values(a="off"))
    assert thetas(requests) == [0.3, 0.25]


def test_rules_without_thresholds():
    requests = book(TopK(2), threshold=None)
    requests.update(["a", "b", "c"], values(a="off", b=0.4))
    assert thetas(requests) == [OFF, OFF, 0.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"threshold": "f1"}, "LOSSY decoding. Judge J, threshold f1 (theta 0.5"),
        ({"threshold": 0.0, "require": "floor:0.01"}, "Judge J, and floor:0.01, threshold 0.0 (theta 0)"),
        ({}, "threshold default (theta 0.5"),
        ({"never_relax": ("digits",)}, "J, never relaxing digits, threshold"),
        ({"threshold": "off"}, "exact decoding, and LOSSY for requests"),
    ],
)
def test_the_log_says_what_is_lossy(rule, settings, expected):
    judge = SelfJudge.__new__(SelfJudge)  # its checks need an engine's configuration
    judge.settings, judge.rule = Settings(judge="J", **settings), rule
    judge.requests = book(rule, threshold=judge.settings.threshold)
    assert expected in judge.describe()
