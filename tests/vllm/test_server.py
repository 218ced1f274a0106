"""The OpenAI-compatible server as a real process, with several clients of the `openai` package at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from server_process import NAME, Server
from vllm_engines import GAMMA, generate, token_ids

from hf_selfjudge.playground.tasks import load_task

pytestmark = pytest.mark.vllm

THRESHOLDS = ("off", "f1", 0.05, None, "recall", 1.0)


@pytest.fixture(scope="module")
def server(draft_folder, tmp_path_factory):
    found = Server(draft_folder, GAMMA, tmp_path_factory.mktemp("server") / "log")
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def texts():
    """The users' messages behind the fixture `prompts`."""
    names = ("word_problems", "multiple_choice", "news", "open_ended")
    return [text for name in names for text in load_task(name, 3, "test", 7).prompts]


@pytest.fixture(scope="module")
def requests(texts):
    """Chats with their thresholds; every second one is streamed."""
    return [(text, THRESHOLDS[index % 6], index % 2 == 0) for index, text in enumerate(texts)]


@pytest.fixture(scope="module")
def expected(embedded, prompts, hf_loop, stock):
    """Stock vLLM's offline answers for "off" and theta 1, else the Hugging Face loop's."""
    exact = token_ids(generate(stock, prompts))
    tokens = [
        exact[index] if THRESHOLDS[index % 6] in ("off", 1.0) else hf_loop(prompt, THRESHOLDS[index % 6] or "f1")[0]
        for index, prompt in enumerate(prompts)
    ]
    assert tokens != exact
    return embedded[2].batch_decode(tokens, skip_special_tokens=True)


def client(server):
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(server, text, threshold, stream=False, **options):
    """One client's question; returns the answer's text."""
    extra = {} if threshold is None else {"vllm_xargs": {"selfjudge": threshold}}
    messages = [{"role": "user", "content": text}]
    with client(server) as asking:
        answer = asking.chat.completions.create(
            model=NAME,
            messages=messages,
            stream=stream,
            extra_body={**extra, **options.pop("extra_body", {})},
            **{"temperature": 0.0, "max_tokens": 96, **options},
        )
        if not stream:
            return answer.choices[0].message.content
        parts = [chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices]
    assert len([part for part in parts if part]) > 1
    return "".join(parts)


def ask_all(server, requests):
    """All questions at once, each by a client of its own."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: ask(server, *request), requests))


def test_concurrent_clients_with_their_own_thresholds(server, requests, expected):
    before = server.counters()
    assert ask_all(server, requests) == expected
    after = server.counters()
    found = {name: after[name] - before.get(name, 0) for name in after}
    ours = {name: found[f"vllm:selfjudge_{name}_tokens_total"] for name in ("drafted", "aligned", "judge_accepted")}
    assert ours["drafted"] == found["vllm:spec_decode_num_draft_tokens_total"] > 0
    assert ours["aligned"] + ours["judge_accepted"] == found["vllm:spec_decode_num_accepted_tokens_total"]
    assert ours["judge_accepted"] > 0
    assert 0 < found["vllm:selfjudge_judged_tokens_total"] < ours["drafted"]


def test_plain_completions_take_token_ids(server, prompts, expected, requests):
    extra = {"vllm_xargs": {"selfjudge": requests[2][1]}}
    with client(server) as asking:
        answer = asking.completions.create(
            model=NAME, prompt=prompts[2], temperature=0.0, max_tokens=96, extra_body=extra
        )
    assert answer.choices[0].text == expected[2]


def test_off_alone_is_exact_and_counts_nothing_judged(server, texts, prompts, stock, embedded):
    exact = embedded[2].batch_decode(token_ids(generate(stock, prompts[:4])), skip_special_tokens=True)
    before = server.counters()
    assert ask_all(server, [(text, "off", False) for text in texts[:4]]) == exact
    after = server.counters()
    for name in ("judged", "judge_accepted"):
        assert after[f"vllm:selfjudge_{name}_tokens_total"] == before[f"vllm:selfjudge_{name}_tokens_total"]


def test_a_bad_threshold_is_status_400(server, texts):
    import openai

    with pytest.raises(openai.BadRequestError, match="expected a number in"):
        ask(server, texts[0], "F1")


def test_retuning_a_running_server(server, texts, prompts, hf_loop, embedded):
    assert float(server.rpc("selfjudge_retune", "recall")) == pytest.approx(
        server.rpc("selfjudge_thresholds")["recall"]
    )
    try:
        [answer] = embedded[2].batch_decode([hf_loop(prompts[3], "recall")[0]], skip_special_tokens=True)
        assert ask(server, texts[3], None) == answer
    finally:
        server.rpc("selfjudge_retune", "f1")
    assert server.counters()["vllm:selfjudge_theta"] == pytest.approx(server.rpc("selfjudge_thresholds")["f1"])


def test_the_log_says_that_decoding_is_lossy(server):
    assert "selfjudge: LOSSY decoding" in server.log.read_text()


def test_after_kill_9_and_a_restart_the_answers_are_the_same(server, requests, expected):
    """Nothing is lost but the request in flight."""
    import openai

    begun, outcome = threading.Event(), []

    def in_flight():
        with client(server) as asking:
            stream = asking.chat.completions.create(
                model=NAME,
                messages=[{"role": "user", "content": requests[0][0]}],
                stream=True,
                max_tokens=450,
                temperature=0.0,
                extra_body={"ignore_eos": True},
            )
            try:
                for _ in stream:
                    begun.set()
                outcome.append("finished")
            except Exception as error:  # openai's, or what its HTTP library raises in the middle of a stream
                outcome.append(error)

    thread = threading.Thread(target=in_flight)
    thread.start()
    assert begun.wait(60)
    server.kill()
    thread.join(60)
    assert len(outcome) == 1
    assert outcome != ["finished"]
    with pytest.raises(openai.APIConnectionError):
        ask(server, *requests[0])
    server.start()
    assert server.counters()["vllm:selfjudge_drafted_tokens_total"] == 0
    assert ask_all(server, requests) == expected
