"""`SelfJudgeWorker`: the platform's own vLLM worker with a judge.

Without an entry "selfjudge" in the additional config it is the stock worker. Everything that can be refused is refused
while the engine starts.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..config import JudgeConfig
from ..rules import Rule
from .approval import OFF, Approver, judge_of
from .requests import Requests
from .settings import Settings, parse_threshold
from .timing import Timing
from .versions import check_config, check_judge, check_version, other_models

logger = logging.getLogger("vllm.hf_selfjudge")  # under vLLM's logger, so that its handlers show it

_WORKERS = {
    "cpu": "vllm.v1.worker.cpu_worker.CPUWorker",
    "cuda": "vllm.v1.worker.gpu_worker.Worker",
    "xpu": "vllm.v1.worker.xpu_worker.XPUWorker",
}
"""What vLLM's platforms choose for `--worker-cls auto`, by their device type."""

_SLOTS = 1024


class SelfJudge:
    """A judge in one worker: rule, counters, and the tap of its model runner."""

    def __init__(self, config: Any, settings: Settings) -> None:
        self.settings = settings
        self._config = config
        self.rule = self._checked_rule()

    def _checked_rule(self) -> Rule | None:
        """Check everything that can be known before the models are loaded."""
        import vllm

        check_version(vllm.__version__)
        check_config(self._config)
        rule = self.settings.rule(self._tokenizer() if self.settings.never_relax else None)
        if rule is not None:
            judge = judge_of(rule)
            check_judge(self._config, judge and judge.verifier.config, rule.needs_draft_logits)
            if judge is not None:
                self._check_pair(judge.verifier.config)
            parse_threshold(self.settings.threshold, rule)
        return rule

    def _check_pair(self, judge: JudgeConfig) -> None:
        """Warn of, or refuse, a judge for other models; names are all that can be compared."""
        for difference in other_models(self._config, judge):
            message = f"The judge {self.settings.judge} may not fit: {difference}."
            if self.settings.strict_pair:
                raise ValueError(f"{message} Take another judge, or leave strict_pair out.")
            logger.warning("%s", message)

    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        model = self._config.model_config
        return AutoTokenizer.from_pretrained(
            model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
        )

    def _end_tokens(self) -> list[int]:
        """The tokens that end a response, as in the generation config or else the model's."""
        model = self._config.model_config
        ends = (model.try_get_generation_config() or {}).get("eos_token_id")
        ends = getattr(model.hf_text_config, "eos_token_id", None) if ends is None else ends
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def attach(self, runner: Any, device: torch.device, rank: int) -> None:
        """Tap a model runner whose models are loaded, and say so once."""
        slots = max(_SLOTS, 2 * self._config.scheduler_config.max_num_seqs)
        self.approver = Approver(self.rule, device, slots, self._end_tokens())
        self.requests = Requests(self.approver, self.rule, self.settings.threshold)
        self.timing = Timing(self.settings.timing, device)
        if self._config.use_v2_model_runner:
            from .runner_v2 import V2Tap

            self.tap: Any = V2Tap(runner, self.approver, self.requests, self.timing)
        else:
            from .runner_v1 import V1Tap

            self.tap = V1Tap(runner, self.approver, self.requests, self.timing)
        if rank == 0:
            logger.warning("%s", self.describe())

    def describe(self) -> str:
        """The mode in one line, for the log."""
        if self.rule is None:
            return "selfjudge: mode alignment-only, decoding is exact."
        extras = [f"and {self.settings.require}"] if self.settings.require else []
        extras += [f"never relaxing {kind}" for kind in self.settings.never_relax]
        threshold, theta = self.requests.threshold, self.requests.theta
        point = f"threshold {'default' if threshold is None else threshold} (theta {theta:g})"
        judge = ", ".join([self.settings.judge, *extras, point if judge_of(self.rule) else "no threshold"])
        if theta >= OFF:
            return (
                f"selfjudge: exact decoding, and LOSSY for requests that bring a threshold of their own. Judge {judge}."
            )
        return (
            f"selfjudge: LOSSY decoding. Judge {judge}: draft tokens it accepts stand although the target would have "
            'chosen others. Exact per request with extra_args/vllm_xargs {"selfjudge": "off"}.'
        )

    def statistics(self, per_request: bool) -> dict[str, Any]:
        """Counters, operating point and, if timed, the judge's share of the steps."""
        found = {"judge": self.settings.judge, "mode": self.settings.mode, **self.requests.statistics(per_request)}
        if self.timing.enabled:
            found["seconds"] = dict(self.timing.seconds)
        return found


class SelfJudgeMixin:
    """What is added to the platform's worker. RPC methods start with `selfjudge_`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings.from_config(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        self._selfjudge = None if settings is None else SelfJudge(self.vllm_config, settings)  # type: ignore[attr-defined]

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Load the models, then tap the runner."""
        loaded = super().load_model(*args, **kwargs)  # type: ignore[misc]
        if self._selfjudge is not None:
            self._selfjudge.attach(self.model_runner, self.device, self.rank)  # type: ignore[attr-defined]
        return loaded

    def compile_or_warm_up_model(self, *args: Any, **kwargs: Any) -> Any:
        """Warm up as vLLM does; on a GPU that verifies made-up requests, which nobody wants in the statistics."""
        found = super().compile_or_warm_up_model(*args, **kwargs)  # type: ignore[misc]
        if self._selfjudge is not None:
            self._selfjudge.requests.forget()
            self._selfjudge.timing.forget()
        return found

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """The step's forward; timed if asked for."""
        if self._selfjudge is None:
            return super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        self._selfjudge.requests.finish(scheduler_output.finished_req_ids)
        with self._selfjudge.timing.phase("step"):
            return super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        """The step's sampling, with the judge."""
        if self._selfjudge is None:
            return super().sample_tokens(grammar_output)  # type: ignore[misc]
        with self._selfjudge.timing.phase("step"):
            self._selfjudge.tap.before_sampling(grammar_output)
            try:
                return super().sample_tokens(grammar_output)  # type: ignore[misc]
            finally:
                self._selfjudge.tap.after_sampling()

    def selfjudge_retune(self, threshold: str | float | None = None) -> float:
        """Another operating point for requests that bring none; returns its theta. By `collective_rpc`."""
        judge = self._running()
        theta = judge.requests.retune(threshold)
        logger.warning("%s", judge.describe())
        return theta

    def selfjudge_statistics(self, per_request: bool = False) -> dict[str, Any]:
        """The counters since the start, the same on every rank. By `collective_rpc`."""
        return self._running().statistics(per_request)

    def selfjudge_thresholds(self) -> dict[str, float] | None:
        """The judge's named operating points; None if the rule has none. By `collective_rpc`."""
        rule = self._running().rule
        judge = None if rule is None else judge_of(rule)
        return None if judge is None else dict(judge.verifier.config.thresholds)

    def _running(self) -> SelfJudge:
        if self._selfjudge is None:
            raise RuntimeError('This engine has no judge: its --additional-config has no entry "selfjudge".')
        return self._selfjudge


def worker_class() -> type:
    """The worker of this platform with a judge, made once."""
    if "SelfJudgeWorker" not in globals():
        from vllm.platforms import current_platform
        from vllm.utils.import_utils import resolve_obj_by_qualname

        device = current_platform.device_type
        if device not in _WORKERS:
            raise RuntimeError(f"selfjudge knows vLLM's workers for {sorted(_WORKERS)}, not for {device!r}.")
        bases = (SelfJudgeMixin, resolve_obj_by_qualname(_WORKERS[device]))
        globals()["SelfJudgeWorker"] = type("SelfJudgeWorker", bases, {"__module__": __name__})
    return globals()["SelfJudgeWorker"]
