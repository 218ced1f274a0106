"""The README.md of a judge: made from its config and, where there is one, from the report of its build.

Knows nothing of torch or of the Hub's API. What a person writes into a card is `handwritten`'s business.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from huggingface_hub import ModelCard
from huggingface_hub.utils import HFValidationError, validate_repo_id

from ..config import EMBEDDED, JudgeConfig, ModelReference
from . import card_sections as sections
from . import measured
from .handwritten import assemble

TAGS = ("selfjudge", "speculative-decoding", "judge-decoding", "custom_generate")
LIBRARY = "hf-selfjudge"
REPORT_FILE = "report/report.json"
MAX_REPORT_BYTES = 1 << 26
UNNAMED = "path/to/this/folder"

WITHOUT_IMPORT = """
Without importing it (it must be installed; transformers runs this repository's `custom_generate/generate.py`, so read
it first):

```python
out = target.generate(
    **inputs,
    custom_generate="{repo}",
    trust_remote_code=True,
    assistant_model=draft,
    judge="{named}",
{tokenizer_line}    max_new_tokens=128,
)
```
"""


def judge_card(
    config: JudgeConfig, report: dict[str, Any] | None = None, repo_id: str | None = None, measured_section: str = ""
) -> ModelCard:
    """The card of a judge.

    Args:
        config: the judge's configuration.
        report: the report of its build (`report/report.json`); without it the card has fewer tables.
        repo_id: the judge's name on the Hub, used in the examples.
        measured_section: the section of what comparisons measured with it, if any.
    """
    report = report or {}
    name = {role: _name(getattr(config, role)) for role in ("target", "draft")}
    pair = " and ".join(f"the {role} {sections.code(found)}" for role, found in name.items() if found)
    known = bool(name["target"] and name["draft"])
    title = f"A judge for {_base(name['target'])} with {_base(name['draft'])}" if known else "A judge"
    if str(name["target"]).startswith(EMBEDDED):
        title = "A judge for the embedded pair of hf-selfjudge"
    repo = _quoted(repo_id or UNNAMED)
    body = Template((Path(__file__).parent / "card.md").read_text(encoding="utf-8")).substitute(
        title=sections.plain(title),
        pair=pair or "an unnamed pair",
        **_use(config, name, repo, on_hub=repo_id is not None),
        operating_points=sections.operating_points(config, report),
        quality=sections.quality(config, report),
        measured=f"\n\n{measured_section}" if measured_section else "",
        examples=sections.examples(report),
        limits=sections.limits(config, report, [found for found in name.values() if found and not _is_hub_id(found)]),
        provenance=sections.provenance(config, report),
    )
    return ModelCard(assemble(metadata(config), body))


def _use(config: JudgeConfig, names: dict[str, str | None], repo: str, on_hub: bool) -> dict[str, str]:
    """The lines of the card's code that differ from judge to judge."""
    beside = str(config.labels.get("rule") or "")
    embedded = all(str(name).startswith(EMBEDDED) for name in names.values())
    if beside:  # a judge that was tuned beside a rule is used beside it
        named = f"judge:{repo}@{_quoted(config.default_threshold)}&{_quoted(beside)}"
        made = f'judge = "{named}"  # beside the rule that it was tuned with'
        package = "import hf_selfjudge  # teaches generate the keyword judge="
    else:
        named, made = repo, f'judge = SelfJudgeVerifier.from_pretrained("{repo}")  # or threshold="name"'
        package = f"from hf_selfjudge import SelfJudgeVerifier{', playground' if embedded else ''}"
    if embedded:
        loading = f"{package}\n\ntarget, draft, tokenizer, _ = playground.load()"
    else:
        target, draft = (_quoted(name or f"the {role}") for role, name in names.items())
        loading = (
            f"from transformers import AutoModelForCausalLM, AutoTokenizer\n\n{package}\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{target}")\n'
            f'target = AutoModelForCausalLM.from_pretrained("{target}")\n'
            f'draft = AutoModelForCausalLM.from_pretrained("{draft}")'
        )
    tokenizer, line = ("tokenizer=tokenizer, ", "    tokenizer=tokenizer,\n") if "+" in beside else ("", "")
    return {
        "loading": loading,
        "judge": made,
        "with_tokenizer": tokenizer,
        # only what is pushed has the folder custom_generate
        "without_import": WITHOUT_IMPORT.format(repo=repo, named=named, tokenizer_line=line) if on_hub else "",
    }


def metadata(config: JudgeConfig) -> dict[str, Any]:
    """The card's YAML. The Hub refuses a base_model that is no Hub id, so paths of local models are left out of it."""
    found: dict[str, Any] = {"library_name": LIBRARY, "tags": list(TAGS), "pipeline_tag": "text-generation"}
    models = [name for role in ("target", "draft") if _is_hub_id(name := _name(getattr(config, role)))]
    if models:
        found |= {"base_model": models, "base_model_relation": "adapter"}
    datasets = sorted(hub_datasets(config).values())
    if datasets:
        found["datasets"] = list(dict.fromkeys(datasets))
    return found


def hub_datasets(config: JudgeConfig) -> dict[str, str]:
    """The Hub datasets among the sources of the training prompts: source -> dataset id."""
    sources = config.labels.get("prompts")
    if not isinstance(sources, dict):
        return {}
    presets = _presets()
    found = {}
    for source in sources:
        name = str(source).split("?")[0].split("@")[0]  # NAME@fold0?split=test; NAME=FILE is a file's
        if name in presets:
            found[str(source)] = presets[name]
    return found


def read_report(folder: Path, config: JudgeConfig) -> dict[str, Any] | None:
    """The report of the build in `folder`; None where there is none, or where it is of another judge."""
    path = folder / REPORT_FILE
    if not path.is_file() or path.stat().st_size > MAX_REPORT_BYTES:
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        same = report["calibration"]["thresholds"].items() <= config.thresholds.items()  # one may have been added
        same = same and tuple(report["judge"]["features"]) == config.features
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return report if same else None


def folder_card(folder: Path, repo_id: str | None = None, measured_section: str | None = None) -> ModelCard:
    """The card of the judge in a folder, with the report of its build if it lies beside it.

    What was measured is told by `measured_section`, or else by measured.json in the folder.
    """
    config = JudgeConfig.load(folder / "config.json")
    if measured_section is None:
        measured_section = measured.section(folder)
    return judge_card(config, read_report(folder, config), repo_id, measured_section)


@cache
def _presets() -> dict[str, str]:
    """Names of prompt sources -> dataset ids."""
    import yaml

    path = Path(__file__).parent.parent / "pipeline" / "sources" / "presets.yaml"
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: entry["dataset"] for name, entry in entries.items() if "dataset" in entry}


def _name(reference: ModelReference | None) -> str | None:
    return None if reference is None else reference.id


def _base(name: str | None) -> str:
    return str(name).rstrip("/").rsplit("/", 1)[-1]


def _quoted(text: str) -> str:
    """Text for the inside of a Python string in a code block."""
    return json.dumps(text, ensure_ascii=True)[1:-1].replace("`", "")


def _is_hub_id(name: str | None) -> bool:
    if name is None or name.count("/") != 1:
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
