"""Make the cards of this pair's judges: `python benchmarks/real_pair/cards.py rejoin paper ...`.

A judge lies in benchmarks/results/real-pair/judges/NAME, with report/ beside it if its card is to have the build's
tables. Its config and report get the pair's Hub ids in place of the folders that the build was given; what the
comparisons in benchmarks/results/real-pair/gamma* measured with it goes into its measured.json, its README.md and
hub_cards/.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from hf_selfjudge.files import write_text
from hf_selfjudge.hub.card import REPORT_FILE, folder_card
from hf_selfjudge.hub.folder import renew_card
from hf_selfjudge.hub.measured import asks, record

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real-pair"
PAIR = {"target": "Qwen/Qwen2.5-Coder-1.5B-Instruct", "draft": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}
WEIGHTS = "official Q4_K_M GGUF files, dequantised to bfloat16"
CARD = "qwen2.5-coder-1.5b-0.5b-{}"


def main() -> None:
    """Make the cards of the judges named on the command line."""
    for name in sys.argv[1:]:
        path = make_card(RESULTS / "judges" / name, sorted(RESULTS.glob("gamma*/compare.json")), ROOT / "hub_cards")
        sys.stdout.write(f"{path} is up to date\n")


def make_card(folder: Path, comparisons: list[Path], cards: Path) -> Path:
    """Name the pair, keep what was measured and write both cards; the path of the one for the Hub."""
    name_pair(folder)
    found = [path for path in comparisons if asks(json.loads(path.read_text(encoding="utf-8")), folder.name)]
    if found:
        record(folder, found)
    renew_card(folder, overwrite=True)
    path = cards / f"{CARD.format(folder.name)}.md"
    write_text(path, hub_card(folder))
    return path


def hub_card(folder: Path) -> str:
    """The card of a judge for the Hub."""
    return str(folder_card(folder, f"hf-selfjudge/{CARD.format(folder.name)}"))


def name_pair(folder: Path) -> None:
    """Put the Hub's ids in place of the models' folders, and files' names in place of their paths."""
    path, report = folder / "config.json", folder / REPORT_FILE
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {role: {"id": name, "revision": None} for role, name in PAIR.items()}
    config["labels"]["weights"] = WEIGHTS
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    if report.is_file():
        found = json.loads(report.read_text(encoding="utf-8"))
        for role, name in PAIR.items():
            found["models"][role]["id"] = name
            found["settings"]["models"][role] = name
        prompts = found["settings"]["prompts"]
        prompts["prompts"] = [re.sub(r"(?:^|(?<==))/[^?=:]*/", "", source) for source in prompts["prompts"]]
        write_text(report, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
