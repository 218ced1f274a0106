"""Engines that must not start: each with a message that says why, before anything is decoded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from vllm_engines import ENGINE, GAMMA

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.config import JudgeConfig
from hf_selfjudge.playground import ASSETS

pytestmark = pytest.mark.vllm


def test_refusals(draft_folder, tmp_path):
    config = JudgeConfig(hidden_size=64)
    SelfJudgeVerifier(config).set_weights(torch.zeros(64), 0.0).save_pretrained(tmp_path / "other")
    drafting = {"method": "draft_model", "model": draft_folder, "num_speculative_tokens": GAMMA}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    block = {**drafting, "rejection_sample_method": "block"}
    embedded = {"judge": str(ASSETS / "judge")}
    cases = [
        (embedded, {"speculative_config": None}, "needs speculative decoding"),
        (
            {"judge": str(tmp_path / "other")},
            {"speculative_config": drafting},
            "width 64, but this target's have width",
        ),
        (embedded, {"speculative_config": ngram}, "reads the draft's logits"),
        (embedded, {"speculative_config": block}, "rejection_sample_method='block'"),
        ({**embedded, "tau": 3}, {"speculative_config": drafting}, "tau"),
        ({**embedded, "threshold": "F1"}, {"speculative_config": drafting}, "one of ['f1'"),
        ({"judge": str(tmp_path / "none")}, {"speculative_config": drafting}, "none"),
        (embedded, {"speculative_config": drafting, "logprobs_mode": "processed_logprobs"}, "logprobs_mode"),
        (embedded, {"speculative_config": drafting, "pretend_version": "0.99.0"}, "tested with vLLM"),
    ]
    asked = [
        {"model": str(ASSETS / "target"), "additional_config": {"selfjudge": entry}, **options, **ENGINE}
        for entry, options, _ in cases
    ]
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("refusals_child.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    found = [
        json.loads(line.removeprefix("RESULT ")) for line in child.stdout.splitlines() if line.startswith("RESULT ")
    ]
    assert len(found) == len(cases), child.stdout[-3000:] + child.stderr[-3000:]
    for message, (_, _, expected) in zip(found, cases, strict=True):
        assert expected in message
