"""What a build gives: the judge's folder, the report, and the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ..config import ModelReference
from ..files import remove_leftovers
from ..hub.card import folder_card
from ..hub.handwritten import updated
from .storage.manifest import Manifest
from .storage.shards import digest, digest_file, digest_json, write_file
from .storage.workplace import Workplace

JUDGE_FILES = ("config.json", "model.safetensors", "README.md")


def refuse_other_model(out: Path) -> None:
    """A judge's files must not take the place of another model's."""
    path = out / "config.json"
    if not path.is_file():
        return
    try:
        kind = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        kind = "no valid JSON"
    if kind != "selfjudge":
        raise ValueError(
            f"{out} holds another model ({path} is of type {kind!r}, expected a judge's). Give another --out."
        )


def write_judge(work: Workplace, manifest: Manifest, out: Path) -> None:
    """Write the judge's folder from the results of fit and calibrate. A README that somebody edited is left alone."""
    models = {role: manifest.data["models"][role] for role in ("target", "draft")}
    judge = work.fit_result.judge(
        thresholds=work.calibration.thresholds,
        default_threshold=work.calibration.default_threshold,
        target=ModelReference(models["target"]["id"], models["target"]["revision"]),
        draft=ModelReference(models["draft"]["id"], models["draft"]["revision"]),
        labels=_label_facts(work),
        metrics=_metrics(work),
    )
    _renew(out / "model.safetensors", save(dict(judge.state_dict()), metadata={"format": "pt"}))
    _renew(out / "config.json", judge.config.to_json().encode())
    manifest.record("judge", "model.safetensors", value=digest_file(out / "model.safetensors"))
    write_card(manifest, out)


def write_card(manifest: Manifest, out: Path) -> None:
    """Write the judge's card, or bring its generated part in step. What somebody wrote into it is left alone."""
    path = out / "README.md"
    new = str(folder_card(out))
    is_ours = not path.exists() or digest_file(path) == manifest.data.get("judge", {}).get("README.md")
    card = (new if is_ours else updated(path.read_text(encoding="utf-8"), new)).encode()
    if is_ours:
        manifest.record("judge", "README.md", value=digest(card))  # first: what is written is known as ours
    _renew(path, card)


def _renew(path: Path, data: bytes) -> None:
    """Write a file unless it is there already."""
    if not path.is_file() or path.read_bytes() != data:
        write_file(path, data)


def drop_judge(manifest: Manifest, out: Path) -> None:
    """Delete the judge that a build has written."""
    written = manifest.data.get("judge", {})
    for name in JUDGE_FILES:
        path = out / name
        if written and path.is_file() and (name != "README.md" or digest_file(path) == written.get(name)):
            path.unlink()


def _metrics(work: Workplace) -> dict[str, Any]:
    """What was measured on held-out prompts, for the judge's config.json."""
    winner, calibration = work.fit_result.winner, work.calibration
    return {
        "model": winner["model"],
        "feature_set": winner["feature_set"],
        "validation_auc": round(winner["mean"], 4),
        "calibration_auc": round(calibration.auc, 4),
        "calibration_auc_interval": [round(end, 4) for end in calibration.auc_interval or []],
        "calibration_rows": calibration.rows,
        "calibration_prompts": calibration.prompts,
        "ece": round(calibration.ece, 4),
    }


def _label_facts(work: Workplace) -> dict[str, Any]:
    """How the labels were made, for the judge's config.json."""
    label, tau = work.settings.label, work.note("label").info["tau"]
    return {
        "labels": label.labels,
        "length": label.length,
        "suffix": label.suffix,
        "reduction": label.reduction,
        "tau": tau,
        "prompts": work.note("prompts").info["sources"],
        "substitutions": len(work.substitutions),
    }


def make_report(work: Workplace, manifest: Manifest, out: Path, again: bool) -> None:
    """The report of a complete build, in `out/report`; one that is up to date is only made `again` when asked for."""
    from ..report import build_report, write_report  # it stands on the pipeline, which only here knows of it

    folder = out / "report"
    stages = manifest.data["stages"]
    made_from = digest_json([stages[name].get("sha256") for name in work.shards if name in stages])
    if not again and manifest.data.get("report") == made_from and (folder / "report.html").is_file():
        return
    remove_leftovers(folder)
    label = work.settings.label
    report = build_report(
        work.prompts,
        work.all_responses,
        work.substitutions,
        work.labels,
        work.note("label").info["statistics"],
        work.fit_result,
        work.calibration,
        work.pair.tokenizer,
        manifest.data,
        work.substitutions.score(label.length, label.suffix, label.reduction),
        work.probability,
    )
    write_report(folder, report)
    write_card(manifest, out)
    manifest.record("report", value=made_from)


def summary(manifest: Manifest, out: Path) -> dict[str, Any]:
    """What a build found so far, in one short JSON document; the manifest has everything."""
    stages = {name: entry for name, entry in manifest.data["stages"].items() if "rows" in entry}
    info = {name: entry["info"] for name, entry in stages.items()}
    found: dict[str, Any] = {
        "out": str(out),
        "rows": {name: entry["rows"] for name, entry in stages.items()},
        "seconds": {name: entry["seconds"] for name, entry in stages.items()},
    }
    if "prompts" in info:
        found["skipped"] = info["prompts"]["skipped"]
    if "respond" in info:
        found |= {"empty": info["respond"]["empty"], "cut": info["respond"]["cut"]}
    if stages.get("score", {}).get("seconds"):
        found["labels_per_second"] = round(stages["score"]["rows"] / stages["score"]["seconds"], 1)
    if "label" in info:
        found |= {"tau": info["label"]["tau"], "acceptable": info["label"]["statistics"]["all"]["acceptable"]}
    if "fit" in info:
        winner = info["fit"]["winner"]
        found |= {"feature_set": winner["feature_set"], "model": winner["model"], "validation_auc": winner["mean"]}
    if "calibrate" in info:
        found |= {"calibration_auc": info["calibrate"]["auc"], "thresholds": info["calibrate"]["thresholds"]}
    return found
