"""One engine of `selfjudge bench --engine vllm`: reads a job, times it, writes what it found as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

HEADROOM = 16
"""Tokens of the context behind the longest answer, more than a block."""


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Time the job's method on the prompts."""
    import torch
    import transformers
    import vllm

    on_gpu = torch.cuda.is_available()
    dtype = job["dtype"] or ("auto" if on_gpu else "float32")
    llm = _engine(job, dtype)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU",
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "dtype": dtype,
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }
    if job["method"] in ("plain", "stock"):
        return {**found, "run": _fastest(llm, job)}
    found["theta"] = llm.selfjudge_statistics()["theta"]
    if job["method"] == "judge":
        found["off"] = _fastest(llm, job, {"selfjudge": "off"})
    return {**found, "judge": _fastest(llm, job)}


def _engine(job: dict[str, Any], dtype: str) -> Any:
    """The method's engine. Prefixes are not cached: the same prompts come again and again."""
    from vllm import LLM

    longest = max(map(len, job["prompts"])) + job["new_tokens"] + max(HEADROOM, job["gamma"] + 1)
    options = {
        "dtype": dtype,
        "max_model_len": longest,
        "max_num_seqs": job["batch"],
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        **job["engine_args"],
    }
    speculation = {"method": "draft_model", "model": job["draft"], "num_speculative_tokens": job["gamma"]}
    if job["method"] == "plain":
        return LLM(model=job["target"], **options)
    if job["method"] == "stock":
        return LLM(model=job["target"], speculative_config=speculation, **options)
    from ..vllm import judged_llm

    point = {"threshold": job["threshold"], "timing": job["method"] == "timed"}
    return judged_llm(job["target"], job["draft"], job["judge"], job["gamma"], **point, **options)


def _fastest(llm: Any, job: dict[str, Any], extra_args: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fastest of several runs over all prompts, greedy, the reading of prompts included."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=job["new_tokens"], extra_args=extra_args)
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    llm.generate(prompts[: 2 * job["batch"]], params, use_tqdm=False)  # warm-up
    best: dict[str, Any] = {"wall_s": float("inf")}
    for _ in range(job["repeats"]):
        before = _counters(llm, job)
        begun = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        if seconds < best["wall_s"]:
            answers = [list(output.outputs[0].token_ids) for output in outputs]
            after = _counters(llm, job)
            change = {name: after[name] - before[name] for name in after}
            best = {"wall_s": seconds, "answers": answers, **_figures(answers, seconds, change)}
    return best


def _figures(answers: list[list[int]], seconds: float, change: dict[str, float]) -> dict[str, Any]:
    """Speed, and what vLLM and the judge counted; the last block of an answer counts whole."""
    tokens = sum(map(len, answers))
    found: dict[str, Any] = {"tokens": tokens, "tokens_per_s": tokens / seconds}
    if change.get("drafts"):
        # vLLM's mean acceptance length is this plus the bonus or corrected token
        found["accepted_per_cycle"] = change["accepted"] / change["drafts"]
        found["tokens_per_target_forward"] = 1 + found["accepted_per_cycle"]
    if "judge_accepted" in change:
        found["judge_accepted_per_cycle"] = change["judge_accepted"] / max(change["drafts"], 1)
    if "step" in change:
        found["seconds"] = {name: change[name] for name in ("step", "judge")}
    return found


def _counters(llm: Any, job: dict[str, Any]) -> dict[str, float]:
    """vLLM's counters of speculation and, where there is a judge, its own."""
    names = {"vllm:spec_decode_num_drafts": "drafts", "vllm:spec_decode_num_accepted_tokens": "accepted"}
    found = {names[metric.name]: float(metric.value) for metric in llm.get_metrics() if metric.name in names}
    if job["method"] in ("judge", "timed"):
        statistics = llm.selfjudge_statistics()
        found["judge_accepted"] = statistics["judge_accepted"]
        found.update(statistics.get("seconds", {}))
    return found


if __name__ == "__main__":
    asked, answer = map(Path, sys.argv[1:])
    answer.write_text(json.dumps(measure(json.loads(asked.read_text(encoding="utf-8")))), encoding="utf-8")
