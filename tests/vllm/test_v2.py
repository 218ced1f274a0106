"""Real vLLM with its V2 model runner, through Triton's interpreter: exact when off, the draft's tokens when everything
is accepted, else the Hugging Face loop's. One other process runs all engines (see v2_child.py)."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from v2_child import CONTEXT, ENVIRONMENT, GAMMA, MAX_TOKENS, MIXED, REGEX, RULE

from hf_selfjudge.playground import ASSETS

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("triton") is None, reason="the V2 model runner needs Triton"),
]


@pytest.fixture(scope="session")
def few(prompts) -> list[list[int]]:
    """One prompt per task, of unequal lengths."""
    return prompts[::3]


@pytest.fixture(scope="session")
def run_child(few, draft_folder, embedded, tmp_path_factory):
    """Runs engines in a process of their own; returns what they generated."""

    def run(*runs: str) -> dict:
        folder = tmp_path_factory.mktemp("v2")
        given = {
            "target": str(ASSETS / "target"),
            "draft": draft_folder,
            "judge": str(ASSETS / "judge"),
            "prompts": few,
            "vocabulary": embedded[0].config.vocab_size,
        }
        (folder / "in.json").write_text(json.dumps(given))
        child = [sys.executable, Path(__file__).parent / "v2_child.py", folder / "in.json", folder / "out.json", *runs]
        done = subprocess.run(child, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return json.loads((folder / "out.json").read_text())

    return run


@pytest.fixture(scope="session")
def seen(run_child) -> dict:
    """What all engines with one rank generated."""
    return run_child("stock", "judged", "probabilistic", "rule")


@pytest.fixture(scope="session")
def stock(seen) -> dict:
    return seen["stock"]


@pytest.fixture(scope="session")
def judged(seen) -> dict:
    return seen["judged"]


def tokens(outputs: list[dict]) -> list[list[int]]:
    return [output["tokens"] for output in outputs]


def loop_tokens(hf_loop, few, threshold) -> list[list[int]]:
    """The Hugging Face loop's, which knows no max_tokens here: it would shorten its last blocks."""
    return [hf_loop(prompt, threshold, 96)[0][:MAX_TOKENS] for prompt in few]


def test_it_is_the_v2_runner(stock):
    assert "vllm.v1.worker.gpu.model_runner.GPUModelRunner" in stock["runner"]


def test_off_and_theta_1_are_stock_vllm_and_the_target(stock, judged, hf_loop, few):
    assert judged["off"] == stock["greedy"]  # log-probabilities included
    assert tokens(stock["greedy"]) == loop_tokens(hf_loop, few, 1.0)
    assert judged["exact statistics"]["judged"] == judged["exact statistics"]["judge_accepted"] == 0


def test_sampling_with_the_judge_off_is_stock_vllm(stock, judged):
    assert judged["sampled off"] == stock["sampled"]
    assert tokens(stock["sampled"]) != tokens(stock["greedy"])


@pytest.mark.parametrize("drafting", ["judged", "probabilistic"])
def test_a_trained_judge_accepts_what_the_hf_loop_accepts(seen, hf_loop, few, drafting):
    assert tokens(seen[drafting]["judged"]) == loop_tokens(hf_loop, few, "f1")
    assert tokens(seen[drafting]["judged"]) != tokens(seen["stock"]["greedy"])


def test_accept_all_follows_the_draft_inside_each_block(judged, embedded, few, hf_loop):
    draft = embedded[1]
    assert tokens(judged["all"]) == loop_tokens(hf_loop, few, 0.0)
    for outputs in (judged["all"], judged["sampled all"]):
        for prompt, found in zip(few, tokens(outputs), strict=True):
            for index in range(1, len(found)):
                if index % (GAMMA + 1) != 0:  # the first token and each bonus token are the target's
                    assert found[index] == most_likely(draft, prompt + found[:index])


def test_drafts_are_drafts_to_the_end_of_the_context(judged, embedded, few):
    [found], prompt = tokens(judged["to the end"]), few[0]
    assert len(prompt) + len(found) == CONTEXT
    whole = [index for index in range(1, len(found) - GAMMA) if index % (GAMMA + 1) != 0]
    assert all(found[index] == most_likely(embedded[1], prompt + found[:index]) for index in whole)
    for index in range(len(found) - GAMMA, len(found)):  # the last block is cut
        choices = {most_likely(model, prompt + found[:index]) for model in embedded[:2]}
        assert found[index] in choices


def test_sampled_bonus_tokens_stay_random(judged):
    assert tokens(judged["sampled all"]) != tokens(judged["all"])


def test_tokens_cut_by_top_k_are_not_relaxed(stock, judged):
    assert tokens(judged["only the best"]) == tokens(stock["greedy"])


def test_each_request_of_a_batch_has_its_own_threshold(stock, judged):
    by_threshold = {"off": stock["greedy"], "f1": judged["judged"], 0.0: judged["all"]}
    expected = [by_threshold[MIXED[index % len(MIXED)]][index]["tokens"] for index in range(len(judged["mixed"]))]
    assert tokens(judged["mixed"]) == expected


def test_verification_in_chunks_changes_nothing(judged):
    assert judged["mixed in chunks"] == judged["mixed"]


def test_log_probabilities_are_the_targets(judged, embedded, few):
    target = embedded[0]
    for prompt, output in zip(few, judged["judged"], strict=True):
        text = torch.tensor([prompt + output["tokens"]])
        with torch.no_grad():
            rows = target(text).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = rows.gather(1, text[0, len(prompt) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output["logprobs"]), expected, atol=1e-3, rtol=1e-3)


def test_structured_output_holds(stock, judged):
    assert judged["grammar off"] == stock["grammar"]
    for output in judged["grammar all"] + stock["grammar"]:
        assert re.fullmatch(REGEX, output["text"]), output["text"]


def test_a_threshold_nobody_knows_is_exact(stock, judged):
    assert tokens(judged["nonsense"]) == [found[:12] for found in tokens(stock["greedy"])]
    assert judged["nonsense statistics"]["refused_thresholds"] == len(judged["nonsense"])


def test_retuning_a_running_engine(judged):
    assert tokens(judged["retuned"]) == [found[:12] for found in tokens(judged["all"])]


def test_a_rule_instead_of_a_judge(seen, embedded, few):
    target, draft = embedded[:2]
    for prompt, found in zip(few, tokens(seen["rule"][RULE]), strict=True):
        start = torch.tensor([prompt + found[:1]])
        out = target.generate(
            start,
            attention_mask=torch.ones_like(start),
            assistant_model=draft,
            judge=RULE,
            num_assistant_tokens=GAMMA,
            max_new_tokens=96,
            do_sample=False,
        )
        assert out[0, len(prompt) :].tolist()[:MAX_TOKENS] == found


def test_two_tensor_parallel_ranks_judge_alike(run_child, judged):
    found = run_child("ranks")["ranks"]
    assert tokens(found["mixed"]) == tokens(judged["mixed"])
    first, second = found["statistics"]
    assert first == second
    assert first["judge_accepted"] > 0


def test_requests_of_the_warm_up_are_not_counted(judged):
    assert judged["warm-up"]["during"]["drafted"] > 0
    after = judged["warm-up"]["after"]
    assert after["drafted"] == after["judged"] == 0
    assert after["requests"] == {}


def test_counters(judged):
    before, after = judged["exact statistics"], judged["judged statistics"]
    gained = {name: after[name] - before[name] for name in ("drafted", "judged", "judge_accepted", "aligned")}
    assert gained["drafted"] == gained["judged"] > 0
    assert 0 < gained["judge_accepted"] <= gained["judged"] - gained["aligned"]
    new = {request: found for request, found in after["requests"].items() if request not in before["requests"]}
    assert {name: sum(found[name] for found in new.values()) for name in gained} == gained


def test_runners_that_are_not_as_tested_are_refused(judged):
    said = judged["refusals"]
    assert said.pop("as it should be") is None
    expected = {
        "judged twice": "RuntimeError.*JudgedRejectionSampler, expected vLLM's own RejectionSampler",
        "sharded": "ValueError.*enable_batch_sharded_sampling",
        "no speculator": "RuntimeError.*speculator.*has no draft_logits",
        "other sampler": "RuntimeError.*expected vLLM's own Sampler",
        "context parallel": "ValueError.*prefill_context_parallel_size=2",
        "missing": "RuntimeError.*has no execute_model_state",
    }
    assert set(said) == set(expected)
    for name, pattern in expected.items():
        assert re.search(pattern, said[name]), said[name]


@torch.no_grad()
def most_likely(model, text: list[int]) -> int:
    return int(model(torch.tensor([text])).logits[0, -1].argmax())
