"""From a pair and prompts to a judge in one resumable run: `build(settings, out)`, or `selfjudge build`.

    settings = BuildSettings(
        models=ModelSettings(target="big", draft="small"), prompts=PromptSettings(prompts=("gsm8k:500",))
    )
    build(settings, "judge")

What is finished stays finished: a run that was interrupted goes on where it stopped, and gives the same bytes as one
that was not. Several processes (`accelerate launch`) share the shards of each stage and give the same bytes too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..files import locked, remove_leftovers
from .build_settings import GROUPS, BuildSettings
from .models import ROLES, ModelSettings, Pair
from .results import JUDGE_FILES, drop_judge, make_report, refuse_other_model, summary, write_judge
from .steps import STEPS, dependents, input_digests, inputs_of
from .storage.manifest import Manifest, differences, package_versions
from .storage.processes import Processes, processes
from .storage.progress import silence
from .storage.shards import digest_json
from .storage.workplace import SHARDED, Workplace, nothing_to_judge

__all__ = ["STAGES", "BuildSettings", "ModelSettings", "build"]

STAGES = (*STEPS, "report")
"""The stages in their order; `report` only shows what the others found."""

COMMANDS = {"prompts": "respond", "autojudge": "label"}
"""The commands of stages that are not called like their command."""

logger = logging.getLogger(__name__)


def build(
    settings: BuildSettings, out: str | Path, stages: Sequence[str] = STAGES, overwrite: str | None = None
) -> dict[str, Any]:
    """Make a judge, or go on with making it. The judge's folder is `out`, with all stages' results in `out/build`.

    Args:
        settings: what to do. Where `out` has results made with other settings, they are refused with the difference.
        out: the folder.
        stages: the stages to run; what they read must be there or among them.
        overwrite: drop the results of this stage, and of all that depend on it, first.

    Returns:
        A summary of the build (JSON): counts, seconds, what was measured.
    """
    unknown = sorted({*stages, *([overwrite] if overwrite else [])} - set(STAGES))
    if unknown:
        raise ValueError(f"There is no stage {', '.join(unknown)}; the stages are {', '.join(STAGES)}.")
    settings.check(stages)
    with processes(settings.models.tp_plan is not None, settings.models.device) as group:
        if group.lockstep and group.world == 1:
            raise ValueError(
                "tp_plan spreads the target over several processes, and there is one: launch with torchrun."
            )
        return _Build(settings, Path(out), [name for name in STAGES if name in stages], group).run(overwrite)


class _Build:
    """One run of some stages."""

    def __init__(self, settings: BuildSettings, out: Path, stages: list[str], group: Processes) -> None:
        self.settings = settings
        self.out = out
        self.folder = out / "build"
        self.stages = stages
        self.group = group
        self.pair = Pair(settings.models, group.device)
        self.work = Workplace(self.folder, settings, self.pair, list(STEPS))
        self.complete: set[str] = set()  # stages found complete in this run

    def run(self, overwrite: str | None) -> dict[str, Any]:
        """All stages, then the summary."""
        with ExitStack() as held:
            self.group.by_first(lambda: self._begin(held, overwrite))
            for stage in self.stages:
                if stage == "report":
                    self.group.by_first(self._report)
                elif stage != "autojudge" or self.group.by_first(self._needs_autojudge):
                    self._run(stage)
                if stage == "calibrate":
                    self.group.by_first(lambda: write_judge(self.work, self.manifest, self.out))
            return self.group.by_first(lambda: summary(self.manifest, self.out))

    # -- before the first stage, by the first process ---------------------------------------------------------------

    def _begin(self, held: ExitStack, overwrite: str | None) -> None:
        """Take the lock, refuse what does not fit, drop what is to be overwritten, and sweep."""
        refuse_other_model(self.out)
        if "prompts" not in self.stages and not (self.folder / "manifest.json").exists():
            raise FileNotFoundError(
                f"{self.out} holds no build to go on with: begin with `selfjudge build` or `respond`."
            )
        held.enter_context(locked(self.folder / "lock"))
        self.manifest = Manifest(self.folder / "manifest.json")
        if self.group.world > 1:
            logger.info("%d processes%s", self.group.world, " share every prompt" if self.group.lockstep else "")
        dropped = dependents(overwrite) if overwrite in STEPS else []
        self._refuse_other_settings([stage for stage in STEPS if stage not in dropped])
        self._check_pair()
        if dropped:
            logger.info("dropping the results of %s", ", ".join(dropped))
            drop_judge(self.manifest, self.out)
            for stage in reversed(dropped):
                self.work.shards[stage].drop()
            self.manifest.forget(dropped)
        remove_leftovers(self.folder)
        remove_leftovers(self.out, JUDGE_FILES)
        for shards in self.work.shards.values():
            shards.clean()
        self.manifest.record("settings", value=self.settings.to_dict())
        changed = differences(self.manifest.data.get("packages", {}), versions := package_versions())
        if changed and any(shards.notes() for shards in self.work.shards.values()):
            logger.warning("what is finished was made with other versions: %s", ", ".join(changed))
        self.manifest.record("packages", value=versions)

    def _refuse_other_settings(self, stages: list[str]) -> None:
        """Results made with other settings than those asked for are neither mixed nor lost: refuse."""
        found: dict[str, list[str]] = {}
        asked = self.settings.to_dict()
        for stage in stages:
            recorded = self.manifest.made_with(stage)
            if not recorded or not self.work.shards[stage].notes():
                continue
            if stage in self.stages:
                lines = differences(recorded, self._made_with(stage))
            else:
                lines = differences(self.manifest.settings.get(stage, {}), asked[stage]) if stage in GROUPS else []
            if lines:
                found[stage] = [line.removeprefix("settings.") for line in lines]
        if found:
            shown = "; ".join(f"{stage}: {', '.join(lines)}" for stage, lines in found.items())
            raise ValueError(
                f"{self.out} has results made with other settings (old -> new): {shown}. Give the old settings or "
                f"another --out, or drop these results and all made from them with --overwrite {next(iter(found))}."
            )

    def _check_pair(self) -> None:
        """Both models must have one vocabulary; a pair that was checked before is not read again."""
        used = {role for stage in self.stages if stage in STEPS for role in STEPS[stage].models}
        if not used or not all(getattr(self.settings.models, role) for role in ROLES):
            return
        described = {role: self.pair.describe(role) for role in ROLES}
        if self.manifest.data["models"] != described:
            self.pair.check()
            self.manifest.record("models", value=described)

    def _made_with(self, stage: str) -> dict[str, Any]:
        """What a stage's results depend on beside their inputs; of stages not run now, what was recorded."""
        if stage not in self.stages:
            return self.manifest.made_with(stage)
        models = {role: self.pair.describe(role) for role in STEPS[stage].models}
        for described in models.values():
            described.pop("id")  # a model that was moved is the same model
        return {"settings": STEPS[stage].settings(self.settings), "models": models}

    def _needs_autojudge(self) -> bool:
        self._require("prompts", "autojudge")
        return len(self.work.autojudged) > 0

    def _report(self) -> None:
        self._require("calibrate", "report")
        make_report(self.work, self.manifest, self.out, again=self.stages == ["report"])
        logger.info("report: %s", self.out / "report" / "report.html")

    # -- one stage --------------------------------------------------------------------------------------------------

    def _run(self, stage: str) -> None:
        """Compute what is missing: shard by shard by all processes, or at once by the first."""
        started = time.perf_counter()
        plan = self.group.by_first(lambda: self._plan(stage))
        pending, made_with = plan["pending"], plan["made_with"]
        with self.group.together(), silence(stage in SHARDED):
            first = self.group.is_first
            shards = self.group.mine(pending) if stage in SHARDED else pending if first else []
            for index in tqdm(shards, stage, unit="shard", disable=None if first and stage in SHARDED else True):
                self._compute(stage, index, made_with)
        self.group.by_first(lambda: self._finish(stage, len(pending), time.perf_counter() - started))

    def _plan(self, stage: str) -> dict[str, Any]:
        """Which shards must be made, and with what; the stages before must be complete."""
        for name in inputs_of(self.work, stage):
            self._require(name, stage)
        made_with = self._made_with(stage)
        self.manifest.record("stages", stage, "made_with", value=made_with)
        problems = self._problems(stage)
        for index, problem in problems.items():
            if problem != "missing":
                logger.warning("%s: shard %05d is made again: %s", stage, index, problem)
        return {"pending": list(problems), "made_with": digest_json(made_with)}

    def _problems(self, stage: str) -> dict[int, str]:
        """What is unfinished in a stage, and why."""
        shards, made_with = self.work.shards[stage], digest_json(self._made_with(stage))
        places = range(self.work.shard_count(stage))
        found = {index: shards.problem(index, made_with, input_digests(self.work, stage, index)) for index in places}
        return {index: problem for index, problem in found.items() if problem is not None}

    def _require(self, stage: str, reader: str) -> None:
        """Refuse to go on from a stage that is not complete."""
        if stage in self.complete:
            return
        for name in inputs_of(self.work, stage):
            self._require(name, reader)
        problems = self._problems(stage)
        if problems:
            index, problem = next(iter(problems.items()))
            raise ValueError(
                f"{reader} needs the results of {stage}, and {len(problems)} of {self.work.shard_count(stage)} shards "
                f"in {self.folder / stage} are not finished (shard {index:05d}: {problem}). Run `selfjudge "
                f"{COMMANDS.get(stage, stage)}` or `selfjudge build` with --out {self.out} first."
            )
        self.complete.add(stage)

    def _compute(self, stage: str, index: int, made_with: str) -> None:
        """One shard, from its inputs to the disk."""
        started = time.perf_counter() - self.pair.loading_seconds
        inputs = input_digests(self.work, stage, index)
        try:
            piece = STEPS[stage].compute(self.work, index)
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"Out of memory in {stage}, shard {index:05d} ({' '.join(str(error).split())[:200]}). Give a smaller "
                "--batch-size, --mine-batch-size or --max-tokens, or spread the model with --device-map auto."
            ) from None
        if self.group.is_first or not self.group.lockstep:
            seconds = time.perf_counter() - self.pair.loading_seconds - started
            self.work.shards[stage].write(index, piece, made_with, inputs, seconds, self.group.rank)

    def _finish(self, stage: str, made: int, seconds: float) -> None:
        """Put a complete stage into the manifest and say so."""
        notes = [self.work.shards[stage].note(index) for index in range(self.work.shard_count(stage))]
        known = [note for note in notes if note is not None]
        if len(known) < len(notes):
            raise ValueError(f"{stage}: {len(notes) - len(known)} shards vanished while it ran; run it again.")
        self.complete.add(stage)
        rows = sum(note.rows for note in known)
        entry = {
            "made_with": self.manifest.made_with(stage),
            "rows": rows,
            "shards": len(known),
            "seconds": round(sum(note.seconds for note in known), 3),
            "sha256": digest_json([note.sha256 for note in known]),
            "info": _total([note.info for note in known]) if stage in SHARDED else known[0].info,
        }
        self.manifest.record("stages", stage, value=entry)
        there = f" ({len(known) - made} of {len(known)} shards were there)" if made < len(known) else ""
        there = there if stage in SHARDED or made else " (was there)"
        logger.info("%s: %d %s in %.1f s%s", stage, rows, STEPS[stage].noun, seconds, there)
        for remark in (*known[0].info.get("notes", []), *known[0].info.get("statistics", {}).get("warnings", [])):
            logger.warning("%s: %s", stage, remark)
        if stage == "mine" and rows == 0:
            nothing_to_judge()


def _total(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of what the shards of a stage counted."""
    return {name: sum(info[name] for info in infos) for name in (infos[0] if infos else {})}
