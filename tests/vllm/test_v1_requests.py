"""Requests' own thresholds gone wrong, retuning while it runs, and the counters."""

import pytest
from vllm_engines import GAMMA, generate, token_ids

from hf_selfjudge.vllm.offline import show_metrics

pytestmark = pytest.mark.vllm


def counters(llm):
    found = llm.selfjudge_statistics()
    return {name: found[name] for name in ("drafted", "judged", "judge_accepted", "aligned")}


def difference(after, before):
    return {name: after[name] - before[name] for name in after}


@pytest.fixture
def vllms_own(judged, monkeypatch):
    """vLLM's own counts, from before they go to Prometheus, whose registry has only the last engine of a process."""
    found = {"drafted": 0, "accepted": 0}
    record = judged.llm_engine.logger_manager.record

    def listening(*args, **kwargs):
        stats = kwargs["scheduler_stats"] and kwargs["scheduler_stats"].spec_decoding_stats
        if stats is not None:
            found["drafted"] += stats.num_draft_tokens
            found["accepted"] += stats.num_accepted_tokens
        return record(*args, **kwargs)

    monkeypatch.setattr(judged.llm_engine.logger_manager, "record", listening)
    return found


@pytest.mark.parametrize("value", ["F1", 1.5, [0.4], True])
def test_a_bad_threshold_is_refused_before_anything_runs(judged, prompts, value):
    from vllm import SamplingParams

    good, bad = SamplingParams(), SamplingParams(extra_args={"selfjudge": value})
    with pytest.raises(ValueError, match="expected a number in"):
        judged.generate([{"prompt_token_ids": prompt} for prompt in prompts[:2]], [good, bad], use_tqdm=False)
    with pytest.raises(ValueError, match="expected a number in"):
        judged.chat([{"role": "user", "content": "Hello"}], bad, use_tqdm=False)


def test_a_bad_threshold_that_reaches_a_worker_is_decoded_exactly(judged, stock, prompts, caplog):
    from vllm import LLM, SamplingParams

    bad = SamplingParams(temperature=0.0, max_tokens=60, extra_args={"selfjudge": "F1"})
    refused = judged.selfjudge_statistics()["refused_thresholds"]
    found = LLM.generate(judged, [{"prompt_token_ids": prompts[0]}], bad, use_tqdm=False)
    assert list(found[0].outputs[0].token_ids) == token_ids(generate(stock, prompts[:1], 60))[0]
    assert judged.selfjudge_statistics()["refused_thresholds"] == refused + 1


def test_retuning(judged, hf_loop, stock, prompts):
    try:
        assert judged.selfjudge_retune(0.05) == 0.05
        assert token_ids(generate(judged, prompts[:4])) == [hf_loop(prompt, 0.05)[0] for prompt in prompts[:4]]
        assert judged.selfjudge_retune("off") == 1.0
        assert token_ids(generate(judged, prompts[:4])) == token_ids(generate(stock, prompts[:4]))
        with pytest.raises(Exception, match="expected a number in"):
            judged.selfjudge_retune("F1")
    finally:
        judged.selfjudge_retune("f1")
    assert token_ids(generate(judged, prompts[:4])) == [hf_loop(prompt, "f1")[0] for prompt in prompts[:4]]
    assert "f1" in judged.selfjudge_thresholds()


def test_counters_agree_with_vllms_own(judged, prompts, vllms_own):
    before = counters(judged)
    generate(judged, prompts, thresholds=["f1", "off", 0.1, None] * 3)
    ours = difference(counters(judged), before)
    assert ours["drafted"] == vllms_own["drafted"] > 0
    assert ours["aligned"] + ours["judge_accepted"] == vllms_own["accepted"]
    assert 0 < ours["judged"] < ours["drafted"]


def test_counters_agree_with_the_hf_loop(judged, hf_loop, prompts):
    """Up to the last block, which the loop counts only as far as the response goes and vLLM counts whole."""
    for prompt in prompts:
        before = counters(judged)
        tokens, stats = generate(judged, [prompt])[0].token_ids, hf_loop(prompt, "f1")[1]
        found = difference(counters(judged), before)
        assert len(tokens) == stats.new_tokens + 1
        assert found["drafted"] - stats.drafted in range(2 * GAMMA + 1)
        assert found["aligned"] - stats.matched in range(GAMMA + 1)
        assert found["judge_accepted"] - stats.judged_in in range(GAMMA + 1)


def test_counters_of_requests(judged, prompts):
    generate(judged, prompts[:3], thresholds=["off", 0.0, None])
    recent = list(judged.selfjudge_statistics(per_request=True)["requests"].values())[-3:]
    assert sorted(one["theta"] for one in recent) == sorted([1.0, 0.0, judged.selfjudge_thresholds()["f1"]])
    for one in recent:
        assert one["judged"] == (0 if one["theta"] == 1.0 else one["drafted"])
        assert one["theta"] < 1.0 or one["judge_accepted"] == 0
        # accepting all, every block stands whole
        assert one["theta"] > 0.0 or one["judge_accepted"] + one["aligned"] == one["drafted"]


def test_counters_are_among_vllms_metrics(judged, prompts):
    show_metrics(judged, "T")  # done when an engine starts, but the last one of a process wins
    generate(judged, prompts[:2])
    found = {metric.name: metric.value for metric in judged.get_metrics() if "selfjudge" in metric.name}
    expected = counters(judged)
    assert found.pop("vllm:selfjudge_theta") == judged.selfjudge_thresholds()["f1"]
    assert found == {f"vllm:selfjudge_{name}_tokens": value for name, value in expected.items()}


def test_the_judges_share_is_measured(judged, prompts):
    generate(judged, prompts[:2])
    seconds = judged.selfjudge_statistics()["seconds"]
    assert 0 < seconds["judge"] < seconds["step"]
