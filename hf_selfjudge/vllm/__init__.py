"""Judge decoding as a plug-in for unmodified vLLM, by its official extension points.

    vllm serve T --speculative-config '{"method": "draft_model", "model": D, "num_speculative_tokens": 8}' \
        --worker-cls hf_selfjudge.vllm.SelfJudgeWorker \
        --additional-config '{"selfjudge": {"judge": J, "threshold": "f1"}}'

or offline `judged_llm(T, D, J, gamma=8)`. vLLM is imported only when one of the two names is used.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SelfJudgeWorker", "judged_llm"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that the package needs no vLLM."""
    if name == "SelfJudgeWorker":
        from .worker import worker_class

        return worker_class()
    if name == "judged_llm":
        from .offline import judged_llm

        return judged_llm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
