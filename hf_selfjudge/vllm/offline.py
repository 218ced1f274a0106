"""Judge decoding with vLLM in one's own program: a `vllm.LLM` that has a judge."""

from __future__ import annotations

import weakref
from typing import Any

from .metrics import SelfJudgeCollector, register
from .settings import Settings, check_threshold, request_value

WORKER = "hf_selfjudge.vllm.SelfJudgeWorker"


def judged_llm(
    target: str,
    draft: str | None,
    judge: str,
    gamma: int = 8,
    *,
    threshold: str | float | None = None,
    require: str | None = None,
    never_relax: tuple[str, ...] = (),
    timing: bool = False,
    **llm_kwargs: Any,
) -> Any:
    """A `vllm.LLM` whose draft tokens may also be accepted by a judge.

    Args:
        target: the target's folder or Hub id.
        draft: the draft model's; None if `speculative_config` among the other arguments says how to draft.
        judge: a judge's folder or Hub id, or a rule's spec such as "topk:2".
        gamma: tokens drafted per block.
        threshold: the operating point, by name or as a theta; a request's own
            (`SamplingParams(extra_args={"selfjudge": ...})`) goes before it.
        require: a rule's spec that must accept as well, such as "floor:0.01".
        never_relax: kinds of tokens that are never relaxed: "digits", "special".
        timing: measure the judge's share of the steps.
        **llm_kwargs: everything else `vllm.LLM` takes.

    Returns:
        a `vllm.LLM` with three methods more: `selfjudge_statistics`, `selfjudge_retune` and `selfjudge_thresholds`.
    """
    settings = Settings(judge, threshold, require=require, never_relax=tuple(never_relax), timing=timing)
    speculation = llm_kwargs.pop("speculative_config", None) or {}
    if draft is not None:
        speculation = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": gamma, **speculation}
    elif not speculation:
        raise ValueError("judged_llm got neither a draft nor speculative_config=; a judge needs drafted tokens.")
    additional = {**(llm_kwargs.pop("additional_config", None) or {}), **settings.to_config()}
    llm = _judged_class()(
        model=str(target),
        speculative_config=speculation,
        worker_cls=WORKER,
        additional_config=additional,
        **llm_kwargs,
    )
    if not llm_kwargs.get("disable_log_stats", True):
        show_metrics(llm, str(target))
    return llm


def show_metrics(llm: Any, target: str) -> None:
    """The judge's counters in `llm.get_metrics()`, as long as the engine lives."""
    alive = weakref.ref(llm)

    def read() -> dict[str, Any] | None:
        engine = alive()
        return None if engine is None else engine.selfjudge_statistics()

    register(SelfJudgeCollector(target, read))


def _judged_class() -> type:
    """`vllm.LLM` with the judge's methods, and with refusal of a request's bad threshold before it runs."""
    from vllm import LLM

    class JudgedLLM(LLM):
        """A `vllm.LLM` with a judge."""

        def selfjudge_statistics(self, per_request: bool = False) -> dict[str, Any]:
            """Judged, judge-accepted and aligned draft tokens since the start."""
            return self.collective_rpc("selfjudge_statistics", args=(per_request,))[0]

        def selfjudge_retune(self, threshold: str | float | None = None) -> float:
            """Another operating point for requests that bring none; returns its theta."""
            return self.collective_rpc("selfjudge_retune", args=(threshold,))[0]

        def selfjudge_thresholds(self) -> dict[str, float] | None:
            """The judge's named operating points."""
            return self.collective_rpc("selfjudge_thresholds")[0]

        def generate(self, prompts: Any, sampling_params: Any = None, *args: Any, **kwargs: Any) -> Any:
            """As `vllm.LLM.generate`; a request's bad threshold is refused before anything runs."""
            self._check(sampling_params)
            return super().generate(prompts, sampling_params, *args, **kwargs)

        def chat(self, messages: Any, sampling_params: Any = None, *args: Any, **kwargs: Any) -> Any:
            """As `vllm.LLM.chat`; a request's bad threshold is refused before anything runs."""
            self._check(sampling_params)
            return super().chat(messages, sampling_params, *args, **kwargs)

        def _check(self, sampling_params: Any) -> None:
            """Refuse where the caller sees it; a worker could only decode that request exactly."""
            several = isinstance(sampling_params, (list, tuple))
            for params in sampling_params if several else [sampling_params]:
                value = request_value(getattr(params, "extra_args", None))
                if value is not None:
                    check_threshold(value, self.selfjudge_thresholds())

    return JudgedLLM
