"""Real vLLM on a CPU, V1 model runner: exact when off, the draft's tokens when all is accepted, else the HF loop's."""

import pytest
import torch
from vllm_engines import GAMMA, generate, plain, token_ids

from hf_selfjudge.rules import JudgeRule, never_relax, parse_rule

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def stock_tokens(stock, prompts):
    return token_ids(generate(stock, prompts))


def test_stock_speculation_is_the_targets_own_greedy(stock_tokens, embedded, prompts):
    assert stock_tokens == [plain(embedded[0], prompt, 96) for prompt in prompts]


@pytest.mark.parametrize("threshold", ["off", 1.0, 1, "risk-1%"])
def test_off_and_theta_1_are_stock(judged, stock_tokens, prompts, threshold):
    before = judged.selfjudge_statistics()
    assert token_ids(generate(judged, prompts, thresholds=[threshold] * len(prompts))) == stock_tokens
    after = judged.selfjudge_statistics()
    assert after["judge_accepted"] == before["judge_accepted"]
    assert after["aligned"] > before["aligned"]


@pytest.mark.parametrize("threshold", ["f1", "risk-10%", "recall", 0.05])
def test_a_trained_judge_accepts_what_the_hf_loop_accepts(judged, hf_loop, stock_tokens, prompts, threshold):
    found = token_ids(generate(judged, prompts, thresholds=[threshold] * len(prompts)))
    assert found == [hf_loop(prompt, threshold)[0] for prompt in prompts]
    assert found != stock_tokens


def test_the_engines_own_threshold_is_used_without_a_requests(judged, hf_loop, prompts):
    assert token_ids(generate(judged, prompts)) == [hf_loop(prompt, "f1")[0] for prompt in prompts]


def test_each_request_has_its_own_threshold(judged, hf_loop, stock_tokens, prompts):
    thresholds = (["off", 0.05, None, "recall"] * len(prompts))[: len(prompts)]
    expected = [
        stock_tokens[index] if threshold == "off" else hf_loop(prompt, threshold or "f1")[0]
        for index, (prompt, threshold) in enumerate(zip(prompts, thresholds, strict=True))
    ]
    assert token_ids(generate(judged, prompts, thresholds=thresholds)) == expected


def test_accepting_all_follows_the_draft_inside_each_block(judged, embedded, prompts):
    target, draft, tokenizer, _ = embedded
    for prompt, found in zip(prompts[:4], token_ids(generate(judged, prompts[:4], 40, [0.0] * 4)), strict=True):
        expected = plain(target, prompt, 1)
        while len(expected) < 40 and tokenizer.eos_token_id not in expected:
            block = plain(draft, prompt + expected, GAMMA)
            expected += block
            if len(block) == GAMMA:
                expected += plain(target, prompt + expected, 1)
        if tokenizer.eos_token_id in expected:
            expected = expected[: expected.index(tokenizer.eos_token_id) + 1]
        assert found == expected[:40]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 6, 7, 9])
def test_max_tokens_inside_a_block_cuts_the_same_answer(judged, prompts, max_tokens):
    whole = token_ids(generate(judged, prompts[:4]))
    assert token_ids(generate(judged, prompts[:4], max_tokens)) == [tokens[:max_tokens] for tokens in whole]


def test_stop_strings_and_stop_tokens_end_inside_a_block(judged, embedded, prompts):
    for whole, prompt in zip(generate(judged, prompts[:6]), prompts[:6], strict=True):
        stop = whole.text[7:9]
        [cut] = generate(judged, [prompt], stop=[stop])
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.finish_reason == "stop"
        assert list(cut.token_ids) == list(whole.token_ids)[: len(cut.token_ids)]
        token = whole.token_ids[5]
        [cut] = generate(judged, [prompt], stop_token_ids=[token])
        assert list(cut.token_ids) == list(whole.token_ids)[: list(whole.token_ids).index(token) + 1]


def test_cached_prefixes_change_nothing(judged, prompts):
    fresh = token_ids(generate(judged, prompts))
    judged.reset_prefix_cache()
    assert token_ids(generate(judged, prompts)) == fresh
    assert token_ids(generate(judged, prompts[::-1]))[::-1] == fresh


def test_requests_that_join_late_change_nothing(judged, hf_loop, prompts):
    """Prompts are read, in chunks, in the same steps in which other requests verify drafts."""
    from vllm import SamplingParams

    engine, waiting, found, step = judged.llm_engine, list(enumerate(prompts)), {}, 0
    while waiting or engine.has_unfinished_requests():
        if step % 2 == 0 and waiting:
            index, prompt = waiting.pop()
            params = SamplingParams(temperature=0.0, max_tokens=96)
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        found.update({out.request_id: list(out.outputs[0].token_ids) for out in engine.step() if out.finished})
        step += 1
    assert [found[str(index)] for index in range(len(prompts))] == [hf_loop(prompt, "f1")[0] for prompt in prompts]


def test_raw_logprobs_stay_the_targets(judged, embedded, prompts):
    target = embedded[0]
    outputs = generate(judged, prompts[:4], thresholds=[0.05] * 4, logprobs=2)
    for prompt, output in zip(prompts[:4], outputs, strict=True):
        tokens = list(output.token_ids)
        with torch.no_grad():
            logits = target(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)
        for row, token, logprobs in zip(expected, tokens, output.logprobs, strict=True):
            assert logprobs[token].logprob == pytest.approx(float(row[token]), abs=2e-4)
            assert float(row.max()) == pytest.approx(max(entry.logprob for entry in logprobs.values()), abs=2e-4)


def test_forbidden_tokens_are_never_relaxed(judged, prompts):
    whole = token_ids(generate(judged, prompts, 40, [0.0] * len(prompts)))
    common = {token for tokens in whole for token in tokens if sum(token in other for other in whole) >= 4}
    allowed = sorted(set(range(2048)) - common)
    found = token_ids(generate(judged, prompts, 40, [0.0] * len(prompts), allowed_token_ids=allowed))
    assert common
    assert not common & {token for tokens in found for token in tokens}


def test_penalties_go_before_the_judge(judged, stock, prompts):
    penalised = token_ids(generate(stock, prompts, 40, repetition_penalty=1.3))
    off = ["off"] * len(prompts)
    assert token_ids(generate(judged, prompts, 40, off, repetition_penalty=1.3)) == penalised
    assert token_ids(generate(judged, prompts, 40, repetition_penalty=1.3)) != penalised


def test_min_tokens_holds(judged, embedded, prompts):
    outputs = generate(judged, prompts, 90, [0.0] * len(prompts), min_tokens=60)
    assert all(len(tokens) >= 60 for tokens in token_ids(outputs))


def test_the_worker_without_an_entry_is_stock(idle, stock_tokens, prompts):
    assert token_ids(generate(idle, prompts)) == stock_tokens
    assert token_ids(generate(idle, prompts[:2], thresholds=[0.0] * 2)) == stock_tokens[:2]
    with pytest.raises(RuntimeError, match="has no judge"):
        idle.collective_rpc("selfjudge_statistics")


def test_guards_and_required_rules_are_those_of_the_hf_loop(guarded, hidden_judge, hf_loop, embedded, prompts):
    rule = never_relax(JudgeRule(hidden_judge) & parse_rule("floor:0.001"), "digits", embedded[2])
    expected = [hf_loop(prompt, None, rule=rule) for prompt in prompts]
    assert token_ids(generate(guarded, prompts)) == [tokens for tokens, _ in expected]
    assert sum(stats.judged_in for _, stats in expected) > 0


def test_drafts_from_the_prompt(ngram, stock_tokens, prompts):
    off = ["off"] * len(prompts)
    assert token_ids(generate(ngram, prompts, thresholds=off)) == stock_tokens
    before = ngram.selfjudge_statistics()
    assert before["judged"] == before["judge_accepted"] == 0
    generate(ngram, prompts)
    after = ngram.selfjudge_statistics()
    assert after["judge_accepted"] > 0
    with pytest.raises(ValueError, match="has no threshold"):
        generate(ngram, prompts[:1], thresholds=[0.4])


def test_to_the_end_of_the_context(judged, prompts):
    [found] = token_ids(generate(judged, prompts[:1], 512 - len(prompts[0]), [0.0], ignore_eos=True))
    assert len(prompts[0]) + len(found) == 512
    assert 0 not in found  # what vLLM fills in where the drafter has no room
