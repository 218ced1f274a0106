"""What the builds of build.sh found, in one small file: `python benchmarks/real_pair/collect.py JUDGES OUT.json`.

Seconds and rows of every stage, how well each score ranks kept answers above changed ones, the share of answers kept
from the lowest fifth of the scores to the highest, and how well the judges predict their labels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FIGURES = ("substitutions", "acceptable", "autojudge_tried", "flip_rate", "control_flip_rate", "autojudge_acceptable")


def main() -> None:
    """Read the manifests and write the file."""
    judges, out = Path(sys.argv[1]), Path(sys.argv[2])
    found = {folder.name: _of(folder) for folder in sorted(judges.iterdir()) if (folder / "build").is_dir()}
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _of(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "build" / "manifest.json").read_text(encoding="utf-8"))
    stages = manifest["stages"]
    labels, fit, calibration = (stages[name]["info"] for name in ("label", "fit", "calibrate"))
    statistics = labels["statistics"]
    return {
        "packages": manifest["packages"],
        "settings": {name: manifest["settings"][name] for name in ("respond", "mine", "score", "label", "fit")},
        "stages": {name: {key: entry.get(key) for key in ("rows", "seconds")} for name, entry in stages.items()},
        "tau": statistics["tau"],
        "tau_from": statistics["tau_from"],
        "labels": {name: statistics["all"][name] for name in FIGURES},
        "kept_by_score": statistics["kept_by_score"],
        "rankings": statistics["rankings"],
        "judges": [{key: entry[key] for key in ("feature_set", "model", "mean", "sd")} for entry in fit["table"]],
        "calibration_auc": calibration["auc"],
        "thresholds": calibration["thresholds"],
    }


if __name__ == "__main__":
    main()
