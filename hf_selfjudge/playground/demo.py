"""`selfjudge demo`: judge decoding on the embedded pair, shown on three prompts and measured on held-out items.

Answers are decoded in batches by worker processes; speed is measured apart, one sequence at a time, the three methods
taking turns on the same prompts, so that machine noise hits all alike.
"""

from __future__ import annotations

import json
import os
import platform
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hf_selfjudge.files import write_text

METHODS = ("plain", "exact", "judge")
LABELS = {"plain": "alone", "exact": "exact", "judge": "judge"}
"""The target by itself, exact speculative decoding, and judge decoding."""


@dataclass(frozen=True)
class DemoSettings:
    """What the demo runs."""

    items: int = 500
    """Held-out items of each task with a checker; the open-ended task gets a tenth of them."""
    gamma: int = 5
    """Tokens drafted per block."""
    threshold: str | float = "f1"
    """The judge's operating point, by name or as a theta."""
    floor: float = 0.01
    """The judge may relax only to tokens the target itself gives at least this probability."""
    timed: int = 2
    """Items of each task whose speed is measured, one sequence at a time."""
    batch_size: int = 100
    workers: int = 2
    """Worker processes, one thread each."""
    seed: int = 0
    """Seed of the held-out items."""

    def __post_init__(self) -> None:
        for name in ("items", "gamma", "timed", "batch_size", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1.")


def run(settings: DemoSettings, out: Path, console: Console | None = None) -> dict[str, Any]:
    """Run the demo, print it, and write `results.json` and `index.html` to `out`; returns the results."""
    from hf_selfjudge.config import JudgeConfig

    from . import ASSETS
    from .page import write_page

    console = console or Console()
    begun = time.perf_counter()
    JudgeConfig.load(ASSETS / "judge" / "config.json").theta(settings.threshold)  # refuses an unknown one
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(settings.workers, get_context("spawn"), _start_worker, (settings,)) as pool:
        jobs = _submit(pool, settings)
        samples = show_samples(settings, console)  # while the workers are busy
        results = _collect(jobs, settings, console)
    results["seconds"] = round(time.perf_counter() - begun, 1)
    console.print(table(results))
    console.print(verdict(results))
    write_text(out / "results.json", json.dumps(results, indent=2) + "\n")
    write_page(out / "index.html", results, samples)
    console.print(f"The same as a page: [bold]{out / 'index.html'}[/bold]; as JSON: {out / 'results.json'}")
    return results


# -- three prompts, token by token ------------------------------------------------------------------------------------


def show_samples(settings: DemoSettings, console: Console) -> list[dict[str, Any]]:
    """Decode one item of each checked task by the three methods and print the answers coloured by who wrote what."""
    from hf_selfjudge.decoding.rendering import legend, render_response

    from .world import TASKS, generate

    pair, judge = _load(settings)
    console.print(legend())
    samples = []
    for task in [name for name in TASKS if name != "open_ended"]:
        item = generate(task, "test", 1, settings.seed + 1)[0]
        sample: dict[str, Any] = {"task": task, "prompt": item.prompt, "answers": {}}
        lines = [f"[bold]{item.prompt}[/bold]"]
        for method in METHODS:
            new, stats, _ = _answer(pair, item, judge, method, settings.gamma)
            if stats is None:
                text: Any = pair[2].decode(new, skip_special_tokens=True)
                sample["answers"][method] = [(text, "plain")]
            else:
                text = render_response(new, stats, pair[2], skip_special_tokens=True)
                sample["answers"][method] = [
                    (pair[2].decode([token], skip_special_tokens=True), source.value)
                    for token, source in zip(new, stats.sources, strict=True)
                ]
            count = "" if stats is None else f" ({stats.cycles} target forwards for {stats.new_tokens} tokens)"
            lines.append((f"\n[dim]{LABELS[method]}{count}[/dim]", text))  # type: ignore[arg-type]
        samples.append(sample)
        console.print(Panel(_stack(lines), title=task.replace("_", " "), title_align="left"))
    return samples


def _stack(lines: list[Any]) -> Any:
    """Headings and texts below one another."""
    from rich.console import Group

    parts: list[Any] = []
    for line in lines:
        parts.extend(line if isinstance(line, tuple) else (line,))
    return Group(*parts)


def _load(settings: DemoSettings) -> tuple[tuple[Any, Any, Any], Any]:
    """The embedded pair and its judge; in worker processes too."""
    import torch
    from transformers.utils import logging

    from hf_selfjudge.rules import ProbabilityFloor, as_rule, never_relax

    from . import load

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    target, draft, tokenizer, judge = load()
    # The judge may choose between wordings that the target itself might have used. Farther off it is still nearly
    # always right about the meaning, but the target, reading words it never writes, then errs more often itself;
    # and on digits an error is never harmless.
    rule = as_rule(judge.with_threshold(settings.threshold)) & ProbabilityFloor(settings.floor)
    return (target, draft, tokenizer), never_relax(rule, "digits", tokenizer)


def _answer(pair: tuple[Any, Any, Any], item: Any, judge: Any, method: str, gamma: int) -> tuple[list[int], Any, float]:
    """One item answered by one method: new tokens, statistics (None for plain decoding), seconds."""
    import torch

    from .evaluate import MAX_NEW_TOKENS, prompt_ids

    target, draft, tokenizer = pair
    ids = torch.tensor([prompt_ids(tokenizer, item)])
    call: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    if method != "plain":
        mode = "alignment-only" if method == "exact" else "two-stage"
        call |= {"assistant_model": draft, "judge": judge, "judge_mode": mode, "num_assistant_tokens": gamma}
    begun = time.perf_counter()
    out = target.generate(ids, return_dict_in_generate=True, **call)
    seconds = time.perf_counter() - begun
    return out.sequences[0, ids.shape[1] :].tolist(), getattr(out, "judge_stats", None), seconds


# -- held-out items, in worker processes ------------------------------------------------------------------------------

_worker: dict[str, Any] = {}


def _start_worker(settings: DemoSettings) -> None:
    _worker["pair"], _worker["judge"] = _load(settings)
    _worker["settings"] = settings


def _batches(task: str, count: int, settings: DemoSettings) -> list[list[int]]:
    """The items of a task in batches of similar length: little padding, and rows that end together."""
    from .world import generate

    items = generate(task, "test", count, settings.seed)
    order = sorted(range(count), key=lambda index: len(items[index].prompt))
    return [order[first : first + settings.batch_size] for first in range(0, count, settings.batch_size)]


def _decode_job(task: str, method: str, batch: list[int]) -> dict[str, Any]:
    """Decode some held-out items; plain numbers, so that they cross the process border."""
    from hf_selfjudge.evaluation.decode import decode

    from .evaluate import MAX_NEW_TOKENS, prompt_ids
    from .world import generate, score

    settings, pair = _worker["settings"], _worker["pair"]
    every = generate(task, "test", max(batch) + 1, settings.seed)
    items = [every[index] for index in batch]
    answers = decode(
        pair,
        [prompt_ids(pair[2], item) for item in items],
        _worker["judge"],
        gamma=settings.gamma,
        max_new_tokens=MAX_NEW_TOKENS,
        mode="alignment-only" if method == "exact" else "two-stage",
        batch_size=settings.batch_size,
    )
    return {
        "task": task,
        "method": method,
        "items": len(items),
        "scores": [score(item, text) for item, text in zip(items, answers.texts, strict=True)],
        **{name: sum(getattr(answers, name)) for name in ("cycles", "new_tokens", "accepted", "judged_in")},
    }


def _time_job(task: str, index: int) -> dict[str, Any]:
    """Answer one item by each method in turn: seconds and tokens."""
    from .world import generate

    settings = _worker["settings"]
    item = generate(task, "test", index + 1, settings.seed)[index]
    found: dict[str, Any] = {"task": task}
    for method in METHODS:
        new, _, seconds = _answer(_worker["pair"], item, _worker["judge"], method, settings.gamma)
        found[method] = (seconds, len(new))
    return found


def _submit(pool: ProcessPoolExecutor, settings: DemoSettings) -> list[Future[dict[str, Any]]]:
    """Hand out all work: every held-out item decoded exactly and with the judge, then the timing of some of them."""
    from .world import TASKS

    jobs = []
    for task in TASKS:
        count = settings.items if task != "open_ended" else max(1, settings.items // 10)
        for method in METHODS[1:]:
            jobs += [pool.submit(_decode_job, task, method, batch) for batch in _batches(task, count, settings)]
    jobs += [pool.submit(_time_job, task, index) for task in TASKS for index in range(settings.timed)]
    return jobs


def _collect(jobs: list[Future[dict[str, Any]]], settings: DemoSettings, console: Console) -> dict[str, Any]:
    """Wait for the workers behind a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        done = progress.track(
            as_completed(jobs), total=len(jobs), description="decoding held-out items, batch by batch"
        )
        found = [job.result() for job in done]
    return _results(settings, [part for part in found if "method" in part], [part for part in found if "plain" in part])


def _results(settings: DemoSettings, decoded: list[dict[str, Any]], timed: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything measured, per task and method, with the conditions it was measured under."""
    import torch
    import transformers

    from . import ASSETS

    judge = json.loads((ASSETS / "judge" / "config.json").read_text())
    tasks: dict[str, Any] = {}
    for task in dict.fromkeys(part["task"] for part in decoded):
        rows = {
            method: _row([p for p in decoded if (p["task"], p["method"]) == (task, method)]) for method in METHODS[1:]
        }
        per_token = {
            method: sum(t[method][0] for t in timed if t["task"] == task)
            / sum(t[method][1] for t in timed if t["task"] == task)
            for method in METHODS
        }
        # exact decoding gives the target's own text, so its score is the target's
        rows = {"plain": {**rows["exact"], "accepted_per_cycle": None, "tokens_per_target_forward": 1.0}, **rows}
        for method, row in rows.items():
            row["target_forwards_saved"] = round(1 - 1 / row["tokens_per_target_forward"], 4)
            row["relative_speed"] = round(per_token["plain"] / per_token[method], 3)
        tasks[task] = rows
    return {
        "command": "selfjudge demo",
        "settings": asdict(settings),
        "threshold": {
            "name": settings.threshold,
            **judge["thresholds"],
        },
        "conditions": {
            "models": "embedded playground pair (5.0M target, 0.5M draft)",
            "hardware": f"{platform.machine()} CPU, {settings.workers} processes of 1 thread",
            "dtype": "float32",
            "batch": f"{settings.batch_size} for scores and lengths, 1 for speed ({settings.timed} items per task)",
            "cores": os.cpu_count(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "accepted_per_cycle": "draft tokens kept per verified block; corrections and bonus tokens not counted",
            "tokens_per_target_forward": "all new tokens per target forward",
            "judge": f"accepts only where the target gives at least {settings.floor:g}; digits are never relaxed",
        },
        "tasks": tasks,
    }


def _row(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One method's figures on one task."""
    totals = {
        name: sum(part[name] for part in parts) for name in ("items", "cycles", "new_tokens", "accepted", "judged_in")
    }
    scores = [value for part in parts for value in part["scores"] if value is not None]
    return {
        "items": totals["items"],
        "score": round(sum(scores) / len(scores), 4) if scores else None,
        "accepted_per_cycle": round(totals["accepted"] / totals["cycles"], 3),
        "tokens_per_target_forward": round(totals["new_tokens"] / totals["cycles"], 3),
        "judged_in_per_answer": round(totals["judged_in"] / totals["items"], 3),
    }


# -- the table --------------------------------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> Table:
    """All figures as a rich table."""
    sizes = ", ".join(f"{task.replace('_', ' ')} {rows['exact']['items']}" for task, rows in results["tasks"].items())
    shown = Table(title="greedy decoding", caption=f"held-out items: {sizes}; speed: one sequence at a time, alone = 1")
    shown.add_column("task", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    for name in ("score", "accepted\nper cycle", "tokens\nper fwd", "fwds\nsaved", "speed"):
        shown.add_column(name, justify="right", no_wrap=True)
    for task, rows in results["tasks"].items():
        for method, row in rows.items():
            cells = (
                "-" if row["score"] is None else f"{100 * row['score']:.1f}",
                "-" if row["accepted_per_cycle"] is None else f"{row['accepted_per_cycle']:.2f}",
                f"{row['tokens_per_target_forward']:.2f}",
                f"{100 * row['target_forwards_saved']:.0f} %",
                f"{row['relative_speed']:.2f}x",
            )
            name = task.replace("_", " ") if method == "plain" else ""
            shown.add_row(name, LABELS[method], *cells, style="bold" if method == "judge" else None)
        shown.add_section()
    return shown


def verdict(results: dict[str, Any]) -> str:
    """What the judge gained and what it cost, in one sentence."""
    rows = results["tasks"].values()
    gains = [row["judge"]["accepted_per_cycle"] / row["exact"]["accepted_per_cycle"] - 1 for row in rows]
    costs = [100 * (row["judge"]["score"] - row["exact"]["score"]) for row in rows if row["exact"]["score"] is not None]
    return (
        f"The judge accepts {100 * min(gains):.0f} to {100 * max(gains):.0f} % more draft tokens per cycle than exact "
        f"verification; task scores change by {min(costs):+.1f} to {max(costs):+.1f} points."
    )
