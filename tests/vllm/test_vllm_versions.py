"""What the plug-in refuses at start-up. Needs no vLLM."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_selfjudge.config import JudgeConfig, ModelReference
from hf_selfjudge.vllm.versions import (
    SUPPORTED,
    check_config,
    check_hidden,
    check_judge,
    check_version,
    other_models,
    require_attributes,
    require_parameters,
)


def test_the_range_is_the_extras():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm{SUPPORTED}"]


@pytest.mark.parametrize("version", ["0.31.0", "0.31.4", "0.32.0", "0.32.1+cpu", "0.32.0rc1"])
def test_tested_versions_pass(version):
    check_version(version)


@pytest.mark.parametrize("version", ["0.30.9", "0.33.0", "0.33.0.dev5", "1.0", "dev", ""])
def test_others_are_refused(version):
    with pytest.raises(RuntimeError, match="tested with vLLM"):
        check_version(version)


def test_other_internals_are_refused():
    require_attributes(SimpleNamespace(sampler=1), ("sampler",), "runner")
    with pytest.raises(RuntimeError, match="has no hidden, which hf_selfjudge reads"):
        require_attributes(SimpleNamespace(sampler=1), ("sampler", "hidden"), "runner")
    require_parameters(lambda a, b: None, ("a", "b"), "f")
    with pytest.raises(RuntimeError, match="expected"):
        require_parameters(lambda a, c: None, ("a", "b"), "f")


def config(**changes):
    speculation = {
        "method": "draft_model",
        "rejection_sample_method": "standard",
        "uses_draft_model": lambda: True,
        "use_local_argmax_reduction": False,
        "parallel_drafting": False,
    }
    values = {"pipeline_parallel_size": 1, "runner_type": "generate", "logprobs_mode": "raw_logprobs"}
    speculation.update({name: value for name, value in changes.items() if name in speculation})
    values.update({name: value for name, value in changes.items() if name in values})
    return SimpleNamespace(
        speculative_config=None if changes.get("no_speculation") else SimpleNamespace(**speculation),
        parallel_config=SimpleNamespace(pipeline_parallel_size=values["pipeline_parallel_size"]),
        model_config=SimpleNamespace(
            runner_type=values["runner_type"], logprobs_mode=values["logprobs_mode"], get_hidden_size=lambda: 64
        ),
    )


def test_an_ordinary_engine_passes():
    check_config(config())
    check_judge(config(), JudgeConfig(hidden_size=64), needs_draft_logits=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"no_speculation": True}, "needs speculative decoding"),
        ({"rejection_sample_method": "block"}, "rejection_sample_method='block'"),
        ({"rejection_sample_method": "synthetic"}, "rejection_sample_method='synthetic'"),
        ({"method": "extract_hidden_states"}, "extract_hidden_states"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"runner_type": "pooling"}, "runner_type='pooling'"),
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode='processed_logprobs'"),
    ],
)
def test_unsupported_engines_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        check_config(config(**change))


def test_judges_that_cannot_be_fed_are_refused():
    with pytest.raises(ValueError, match="width 32, but this target's have width 64"):
        check_judge(config(), JudgeConfig(hidden_size=32), needs_draft_logits=False)
    for change in ({"uses_draft_model": lambda: False}, {"use_local_argmax_reduction": True}):
        check_judge(config(**change), JudgeConfig(hidden_size=64), needs_draft_logits=False)
        with pytest.raises(ValueError, match="reads the draft's logits"):
            check_judge(config(**change), None, needs_draft_logits=True)


def test_models_that_the_judge_was_not_trained_for_are_named():
    engine = config()
    engine.model_config.model, engine.speculative_config.model = "models/Target-8B", "org/draft-1b"
    judge = JudgeConfig(hidden_size=64, target=ModelReference("org/target-8b"), draft=ModelReference("org/other"))
    [difference] = other_models(engine, judge)
    assert "draft org/other, and this engine's is org/draft-1b" in difference
    engine.speculative_config.uses_draft_model = lambda: False
    assert other_models(engine, judge) == []


def test_states_that_are_not_the_lm_heads_input_are_noticed():
    head, hidden = torch.randn(16, 8), torch.randn(3, 8)

    def compute_logits(states):
        return states @ head.T

    check_hidden(hidden, compute_logits(hidden) * 1.001, compute_logits)
    for wrong in (torch.randn(3, 8), hidden * 3, hidden * float("nan")):
        with pytest.raises(RuntimeError, match="not what the judge was trained on"):
            check_hidden(wrong, compute_logits(hidden), compute_logits)
