"""The server's middleware on a stand-in application: bad thresholds, bodies passed on, counters in /metrics.

Only the tests of metrics need vLLM's environment, which has prometheus_client.
"""

import asyncio
import json
from types import SimpleNamespace

import pytest

from hf_selfjudge.vllm.server import SelfJudgeMiddleware

NAMES = {"f1": 0.5, "recall": 0.9}
STATISTICS = {"drafted": 10, "judged": 8, "judge_accepted": 2, "aligned": 5, "theta": 0.5}


class Engine:
    def __init__(self, names=NAMES):
        self.calls, self.names = [], names

    async def collective_rpc(self, method):
        self.calls.append(method)
        return [self.names if method == "selfjudge_thresholds" else STATISTICS] * 2


class Client:
    """Sends requests through the middleware to an application that echoes their body."""

    def __init__(self, entry=None, engine=None):
        self.engine = engine or Engine()
        config = SimpleNamespace(
            additional_config={} if entry is None else {"selfjudge": entry},
            model_config=SimpleNamespace(served_model_name="T"),
        )
        self.app = SimpleNamespace(state=SimpleNamespace(vllm_config=config, engine_client=self.engine))
        self.middleware = SelfJudgeMiddleware(self._echo)

    async def _echo(self, scope, receive, send):
        body, message = b"", {"more_body": True}
        while scope["type"] == "http" and message.get("more_body"):
            message = await receive()
            body += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def send(self, body, path="/v1/chat/completions", method="POST", kind="application/json"):
        parts = [body[:7], body[7:]]
        waiting = [{"type": "http.request", "body": part, "more_body": index == 0} for index, part in enumerate(parts)][
            ::-1
        ]
        sent = []

        async def receive():
            return waiting.pop()

        async def send(message):
            sent.append(message)

        headers = [(b"Content-Type", kind.encode())]
        scope = {"type": "http", "path": path, "method": method, "app": self.app, "headers": headers}
        asyncio.run(self.middleware(scope, receive, send))
        return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("value", ["F1", 2, True, [1], None, {"a": 1}])
def test_a_bad_threshold_is_answered_with_400(value):
    client = Client({"judge": "J"})
    body = json.dumps({"messages": [], "vllm_xargs": {"selfjudge": value}}).encode()
    status, answer = client.send(body)
    if value is None:
        assert (status, answer) == (200, body)
    else:
        assert status == 400
        error = json.loads(answer)["error"]
        assert "one of ['f1', 'recall']" in error["message"]
        assert error["code"] == 400


@pytest.mark.parametrize(
    "body",
    [
        {"vllm_xargs": {"selfjudge": "f1"}},
        {"vllm_xargs": {"selfjudge": 0.3}},
        {"vllm_xargs": {"selfjudge": "off"}},
        {"vllm_xargs": {"other": "F1"}},
        {"vllm_xargs": "selfjudge"},
        {"messages": [{"role": "user", "content": "selfjudge"}]},
        ["selfjudge"],
    ],
)
def test_everything_else_goes_on_with_its_body(body):
    text = json.dumps(body).encode()
    assert Client({"judge": "J"}).send(text) == (200, text)


def test_what_is_not_json_goes_on():
    assert Client({"judge": "J"}).send(b"selfjudge {")[0] == 200
    body = json.dumps({"vllm_xargs": {"selfjudge": "F1"}}).encode()
    assert Client({"judge": "J"}).send(body, kind="multipart/form-data") == (200, body)


def test_an_engine_that_does_not_answer_is_left_to_the_server(caplog):
    client = Client({"judge": "J"})

    async def broken(method):
        raise ConnectionError("gone")

    client.engine.collective_rpc = broken
    assert client.send(json.dumps({"vllm_xargs": {"selfjudge": "f1"}}).encode())[0] == 200
    assert "could not be read" in caplog.text


def test_names_are_asked_for_once():
    client = Client({"judge": "J"})
    for _ in range(3):
        client.send(json.dumps({"vllm_xargs": {"selfjudge": "f1"}}).encode())
    assert client.engine.calls == ["selfjudge_thresholds"]


def test_a_rule_without_thresholds_says_so():
    client = Client({"judge": "topk:2"}, Engine(names=None))
    status, answer = client.send(json.dumps({"vllm_xargs": {"selfjudge": 0.4}}).encode())
    assert status == 400
    assert b"has no threshold" in answer
    assert client.send(json.dumps({"vllm_xargs": {"selfjudge": "off"}}).encode())[0] == 200


def test_without_a_judge_nothing_is_looked_at():
    client = Client(None)
    body = json.dumps({"vllm_xargs": {"selfjudge": "F1"}}).encode()
    assert client.send(body) == (200, body)
    client.send(b"", "/metrics", "GET")
    assert client.engine.calls == []


@pytest.mark.vllm
def test_metrics_show_the_counters():
    import prometheus_client as prometheus

    client = Client({"judge": "J"})
    assert client.send(b"", "/metrics", "GET")[0] == 200
    text = prometheus.generate_latest().decode()
    assert 'vllm:selfjudge_judge_accepted_tokens_total{model_name="T"} 2.0' in text
    assert 'vllm:selfjudge_theta{model_name="T"} 0.5' in text
    assert client.engine.calls == ["selfjudge_statistics"]


@pytest.mark.vllm
def test_metrics_survive_an_engine_that_does_not_answer(caplog):
    client = Client({"judge": "J"}, Engine())

    async def broken(method):
        raise ConnectionError("gone")

    client.engine.collective_rpc = broken
    assert client.send(b"", "/metrics", "GET")[0] == 200
    assert "could not be read" in caplog.text
