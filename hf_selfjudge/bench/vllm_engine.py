"""`selfjudge bench --engine vllm`: what is timed, one engine after the other, each in a process of its own.

Knows vLLM only by the children it starts (`vllm_child`): one engine's memory is free before the next one starts.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..vllm.settings import OFF_WORD
from ..vllm.versions import SUPPORTED

METHODS = ("plain", "stock", "judge", "timed")
"""One engine each. timed is the judge's again with its clock on, which on a GPU waits for the device."""
SEED = 7
UNCOUNTED = 64
"""Prompts taken from a source without a COUNT."""


@dataclass(frozen=True)
class VllmBenchSettings:
    """What is timed with vLLM; real models only, because acceptance is theirs."""

    target: str
    """The target's folder or Hub id, or `playground`."""
    draft: str
    """The draft's folder or Hub id, or `playground`."""
    judge: str
    """A judge's folder or Hub id, a rule's spec such as "topk:2", or `playground`."""
    threshold: str | float | None = None
    """The judge's operating point; None is its default."""
    gamma: int = 8
    """Tokens drafted per block."""
    prompts: tuple[str, ...] = ("playground:32",)
    """Sources of prompts, as `selfjudge build --prompts` has them."""
    new_tokens: int = 120
    """Tokens per answer at most; an end token ends it."""
    batches: tuple[int, ...] = (1,)
    """How many requests run at once, one set of engines each."""
    repeats: int = 3
    """Timed runs; the fastest counts."""
    dtype: str | None = None
    """None: float32 on a CPU, else the models' own."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `vllm.LLM`, such as {"tensor_parallel_size": 4}."""

    def __post_init__(self) -> None:
        """Check the counts and that nothing is given twice."""
        for name in ("gamma", "new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected an int >= 1.")
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"batches are {self.batches}, expected sizes >= 1.")
        ours = {"model", "speculative_config", "worker_cls", "additional_config", "max_num_seqs", "disable_log_stats"}
        clash = sorted(ours & set(self.engine_args))
        if clash:
            raise ValueError(f"--engine-args has {clash}, which the benchmark sets itself; leave them out.")


def measure_vllm(settings: VllmBenchSettings) -> dict[str, Any]:
    """Tokens per second of plain decoding, stock speculation and judge decoding, and the judge's share of a step."""
    if find_spec("vllm") is None:
        raise ImportError(
            f"`selfjudge bench --engine vllm` needs vLLM {SUPPORTED}, which is not installed here; install it in an "
            "environment of its own with `pip install 'hf-selfjudge[vllm]'`."
        )
    with TemporaryDirectory() as folder:
        job = {**asdict(settings), **_models(settings, Path(folder))}
        job["prompts"] = read(settings.prompts, job["target"])
        found: dict[str, Any] = {"prompts": len(job["prompts"]), "runs": []}
        for batch in settings.batches:
            results = {name: _child({**job, "method": name, "batch": batch}, Path(folder)) for name in METHODS}
            found |= {name: results["judge"][name] for name in ("device", "threads", "dtype", "versions", "theta")}
            found["runs"].append(compared(batch, results))
    return found


def compared(batch: int, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The methods' figures beside each other.

    Args:
        batch: requests at once.
        results: what the children measured, by method.
    """
    seconds = results["timed"]["judge"]["seconds"]
    runs = {
        "plain": results["plain"]["run"],
        "stock": results["stock"]["run"],
        "judge_off": results["judge"]["off"],
        "judge": results["judge"]["judge"],
    }
    exact = runs["plain"]["answers"]
    shown: dict[str, Any] = {"batch": batch}
    for name, run in runs.items():
        same = sum(a == b for a, b in zip(run["answers"], exact, strict=True)) / len(exact)
        shown[name] = {key: value for key, value in run.items() if key not in ("answers", "seconds")}
        shown[name] |= {"answers_as_plain": same}
        if name != "plain":
            shown[name]["over_plain"] = run["tokens_per_s"] / runs["plain"]["tokens_per_s"]
    shown["judge"]["over_stock"] = runs["judge"]["tokens_per_s"] / runs["stock"]["tokens_per_s"]
    shown["judge"]["judge_share"] = seconds["judge"] / seconds["step"]
    return shown


def read(specs: Sequence[str], target: str) -> list[list[int]]:
    """The prompts' token ids, as chats where the target has a template; of the playground held-out items."""
    from transformers import AutoTokenizer

    from ..pipeline.prompts import encoder
    from ..pipeline.sources.dataset_rows import read_prompts
    from ..pipeline.sources.language import PLAYGROUND, parse_sources
    from ..pipeline.sources.mapping import RawPrompt
    from ..playground.tasks import load_task

    encode = encoder(AutoTokenizer.from_pretrained(target), None)
    found: list[list[int]] = []
    # the playground has no end, so that it is refused without a COUNT
    counted = [f"{spec}:{UNCOUNTED}" if re.fullmatch(rf"{PLAYGROUND}(/\w*)?", spec) else spec for spec in specs]
    for source in parse_sources(counted):
        count = source.count or UNCOUNTED
        if source.task is not None:
            texts = load_task(source.task, count, "test", SEED).prompts
            rows = [RawPrompt(({"role": "user", "content": text},), None, None) for text in texts]
        else:
            rows = list(itertools.islice(read_prompts(source, SEED), count))
        found += [encode(row) for row in rows]
    return found


def _models(settings: VllmBenchSettings, folder: Path) -> dict[str, str]:
    """Where the models lie; named shapes have no weights to accept anything by."""
    from ..playground import ASSETS
    from ..playground.wide_heads import widened
    from .shapes import SHAPES

    named = {role: getattr(settings, role) for role in ("target", "draft", "judge")}
    for role in ("target", "draft"):
        if named[role] in SHAPES:
            raise ValueError(
                f"--{role} is the named shape {named[role]!r}; with --engine vllm acceptance is not forced, so give a "
                "real model: a folder, a Hub id, or playground."
            )
    found = {role: str(ASSETS / role) if name == "playground" else name for role, name in named.items()}
    if named["draft"] == "playground":
        found["draft"] = str(widened(ASSETS / "draft", folder / "draft"))
    return found


def _child(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measure one method in a process of its own; its log is shown only if it fails."""
    asked, answer, log = (folder / f"{job['method']}-{job['batch']}.{kind}" for kind in ("job", "json", "log"))
    asked.write_text(json.dumps(job), encoding="utf-8")
    sys.stderr.write(f"selfjudge: {job['method']}, batch {job['batch']}\n")
    with log.open("wb") as out:
        command = [sys.executable, "-m", "hf_selfjudge.bench.vllm_child", str(asked), str(answer)]
        status = subprocess.run(command, stdout=out, stderr=out, check=False).returncode
    if status != 0:
        sys.stderr.write(log.read_text(errors="replace")[-6000:])
        raise ChildProcessError(f"The engine {job['method']!r} ended with status {status}; its log is above.")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def threshold(text: str | None) -> str | float | None:
    """A theta if it reads as a number, else the name of an operating point."""
    if text == OFF_WORD:
        raise ValueError("--threshold is 'off', which is timed anyway; give a theta or a name.")
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def table(found: dict[str, Any]) -> str:
    """The results for people."""
    head = f"vLLM {found['versions']['vllm']}, {found['target']} / {found['draft']}, judge {found['judge']}, "
    lines = [f"{head}{found['device']}, {found['dtype']}"]
    for run in found["runs"]:
        for name in ("plain", "stock", "judge_off", "judge"):
            one = run[name]
            note = f"   {one['accepted_per_cycle']:.2f} accepted per cycle" if "accepted_per_cycle" in one else ""
            note += f", {100 * one['judge_share']:.1f} % of the step is the judge" if name == "judge" else ""
            lines.append(f"batch {run['batch']:<4d} {name:10s} {one['tokens_per_s']:10.1f} tok/s{note}")
    return "\n".join([*lines, ""])
