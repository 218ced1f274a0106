"""Which vLLM this plug-in is tested with, and refusal of everything else.

The plug-in reads internals that no version promises, so outside the tested range, on a missing attribute or with an
option that changes what verification means, the engine must not start: never silently exact, never silently wrong.
"""

from __future__ import annotations

from typing import Any

SUPPORTED = ">=0.31,<0.33"
"""The tested range; pyproject.toml's extra `vllm` is the same, and a test compares the two."""


def check_version(version: str) -> None:
    """Refuse a vLLM outside the tested range."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        supported = SpecifierSet(SUPPORTED).contains(Version(version), prereleases=True)
    except InvalidVersion:
        supported = False
    if not supported:
        raise RuntimeError(
            f"hf_selfjudge's plug-in is tested with vLLM {SUPPORTED}, and this is {version!r}. Install a tested one "
            "(pip install 'hf-selfjudge[vllm]'), or take the entry \"selfjudge\" out of --additional-config."
        )


def require_attributes(thing: Any, names: tuple[str, ...], what: str) -> None:
    """Refuse to run if vLLM's internals do not look as in the tested versions."""
    missing = [name for name in names if not hasattr(thing, name)]
    if missing:
        raise RuntimeError(
            f"vLLM's {what} ({type(thing).__name__}) has no {', '.join(missing)}, which hf_selfjudge reads. This build "
            f"of vLLM is not one that was tested ({SUPPORTED})."
        )


def require_parameters(function: Any, names: tuple[str, ...], what: str) -> None:
    """Refuse to run if a function that is overridden has other parameters than in the tested versions."""
    import inspect

    found = tuple(inspect.signature(function).parameters)
    if found != names:
        raise RuntimeError(
            f"vLLM's {what} takes {found}, expected {names}. This vLLM is not one that was tested ({SUPPORTED})."
        )


def check_config(config: Any) -> None:
    """Refuse options of the engine with which a judge would do nothing or the wrong thing.

    Args:
        config: vLLM's `VllmConfig`.
    """
    speculation = config.speculative_config
    if speculation is None:
        raise ValueError(
            "selfjudge needs speculative decoding, and this engine has none. Give --speculative-config, for instance "
            '\'{"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 8}\'.'
        )
    method = getattr(speculation, "rejection_sample_method", "standard")
    _refuse(method != "standard", f"rejection_sample_method={method!r}", "'standard'")
    _refuse(speculation.method == "extract_hidden_states", "method='extract_hidden_states'", "a method that drafts")
    _refuse(getattr(speculation, "enable_adaptive_verification", False), "enable_adaptive_verification", "it off")
    stages = config.parallel_config.pipeline_parallel_size
    _refuse(stages > 1, f"pipeline_parallel_size={stages}", "1 (tensor parallel works)")
    kind = config.model_config.runner_type
    _refuse(kind != "generate", f"runner_type={kind!r}", "'generate'")
    logprobs = str(config.model_config.logprobs_mode)
    # the approved rows are edited, so logprobs taken after the edit would not be the target's
    _refuse(logprobs.startswith("processed"), f"logprobs_mode={logprobs!r}", "a raw mode")
    _refuse(getattr(config, "watermark_config", None) is not None, "a watermark", "none")


def check_judge(config: Any, judge: Any, needs_draft_logits: bool) -> None:
    """Refuse a judge that this engine's models cannot feed.

    Args:
        config: vLLM's `VllmConfig`.
        judge: the judge's `JudgeConfig`; None for a training-free rule.
        needs_draft_logits: whether the rule reads the draft's logits.
    """
    width = config.model_config.get_hidden_size()
    if judge is not None and judge.hidden_size != width:
        raise ValueError(
            f"The judge reads hidden states of width {judge.hidden_size}, but this target's have width {width}. "
            "Take the judge that was trained on this target."
        )
    speculation = config.speculative_config
    if needs_draft_logits and not (
        speculation.uses_draft_model()
        and not speculation.use_local_argmax_reduction
        and not speculation.parallel_drafting
        and not getattr(speculation, "use_heterogeneous_vocab", False)
    ):
        raise ValueError(
            "This judge or rule reads the draft's logits (log_q, kl_pq, kl_qp), which vLLM has only for method "
            f"'draft_model' with one vocabulary and full logits; this engine has method {speculation.method!r}. Use a "
            "judge without these features."
        )


def other_models(config: Any, judge: Any) -> list[str]:
    """Which of the engine's models are not those that the judge was trained for, in words.

    Args:
        config: vLLM's `VllmConfig`.
        judge: the judge's `JudgeConfig`.
    """
    draft = config.speculative_config.model if config.speculative_config.uses_draft_model() else None
    used = {"target": config.model_config.model, "draft": draft}
    return [
        f"it was trained for the {role} {reference.id}, and this engine's is {name}"
        for role, name in used.items()
        if (reference := getattr(judge, role)) is not None and name is not None and not reference.names(name)
    ]


def check_hidden(hidden: Any, logits: Any, compute_logits: Any) -> None:
    """Refuse to go on if the tapped states are not the lm_head's input: the judge was trained on that and no other.

    Args:
        hidden: states of some rows. (rows, hidden_size)
        logits: what the engine computed for them. (rows, vocab)
        compute_logits: the target's own lm_head.
    """
    again = compute_logits(hidden).float()
    error = float((again - logits.float()).norm() / logits.float().norm())
    if not error < 0.05:  # rounding differs between batch sizes; another layer's state differs by about 1
        raise RuntimeError(
            f"The hidden states that selfjudge reads do not give the engine's logits (relative error {error:.2g}), so "
            f"they are not what the judge was trained on. This vLLM is not one that was tested ({SUPPORTED})."
        )


def _refuse(bad: bool, found: str, expected: str) -> None:
    if bad:
        raise ValueError(f"selfjudge does not work with {found}; it needs {expected}.")
