"""Push a judge to the Hub: its own files and nothing else, in one commit, and none where nothing changed.

A commit is one step on the Hub, so an upload that breaks off leaves the version before it in place.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects, validate_repo_id

from ..config import JudgeConfig
from ..files import write_text
from ..judge import SelfJudgeVerifier
from .card import folder_card, hub_datasets, read_report
from .card_sections import FIGURES
from .download import Repository, real_reason
from .handwritten import is_edited, same_hand, updated
from .measured import FILE as MEASURED
from .measured import section

METHOD = Path(__file__).parent / "custom_generate"
METHOD_FILES = ("generate.py", "requirements.txt")
REPORT_FILES = ("report/report.json", *(f"report/{name}.png" for name in FIGURES))
RESULTS = ".eval_results/judge.yaml"
CARD = "README.md"
PUSHED = ".pushed.json"


@dataclass(frozen=True)
class Pushed:
    """What a push did."""

    repo_id: str
    url: str | None
    """The commit's address; None after a dry run."""
    files: dict[str, int]
    """The files of the judge and their sizes."""
    is_new: bool
    """Whether a commit was made: not in a dry run, and not where the Hub had everything already."""


@dataclass(frozen=True)
class PushOptions:
    """Where and how to push; the names are those of `push_to_hub` in huggingface_hub."""

    private: bool | None = None
    revision: str | None = None
    token: str | None = None
    dry_run: bool = False
    overwrite_card: bool = False
    commit_message: str = "Push a judge with hf-selfjudge"
    create_pr: bool | None = None
    allow_patterns: list[str] | str | None = None
    ignore_patterns: list[str] | str | None = None
    delete_patterns: list[str] | str | None = None


def push(folder: str | Path, repo_id: str, options: PushOptions = PushOptions()) -> Pushed:  # noqa: B008 (frozen)
    """Push the judge in `folder` to the Hub.

    Args:
        folder: a judge's folder, with `report/` beside its files where `selfjudge build` made it.
        repo_id: the repository, made if it is not there.
        options: visibility, revision, token and the like.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; expected a judge's, such as `selfjudge build` makes.")
    SelfJudgeVerifier.from_pretrained(folder)  # what cannot be loaded is not published
    place = f"{repo_id}@{options.revision or 'main'}"
    cards = []

    def stage(staging: Path, hub_card: str | None) -> None:
        from_here = hub_card is not None and pushed_cards(folder).get(place) == _digest(hub_card)
        stage_judge(folder, staging, repo_id, hub_card, options.overwrite_card, from_here)
        cards.append((staging / CARD).read_text(encoding="utf-8"))

    done = _push(stage, repo_id, options, (MEASURED, *REPORT_FILES, RESULTS))
    here = folder / CARD
    if not options.dry_run and here.is_file() and is_edited(here.read_text(encoding="utf-8")):
        known = {**pushed_cards(folder), place: _digest(cards[0])}
        write_text(folder / PUSHED, json.dumps(known, indent=2) + "\n")
    return done


def pushed_cards(folder: Path) -> dict[str, str]:
    """Digests of the handwritten cards that were pushed from a folder, by repository and revision.

    A card on the Hub that is one of them was not edited there since, so the folder's may take its place.
    """
    try:
        found = json.loads((folder / PUSHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def push_method(repo_id: str, options: PushOptions = PushOptions()) -> Pushed:  # noqa: B008 (frozen)
    """Push the `custom_generate` method on its own, for every judge."""
    return _push(lambda staging, hub_card: write_method(staging, hub_card), repo_id, options)


def write_method(folder: Path, card: str | None = None) -> None:
    """Write the repository of the `custom_generate` method to a folder; a `card` that there is already stays."""
    _copy_method(folder)
    text = card or (METHOD / CARD).read_text(encoding="utf-8")
    (folder / CARD).write_text(text, encoding="utf-8")


def stage_judge(
    folder: Path,
    staging: Path,
    repo_id: str,
    hub_card: str | None,
    overwrite: bool = False,
    from_here: bool = False,
) -> None:
    """Put exactly what is published of a judge into `staging`.

    Args:
        folder: the judge's folder.
        staging: an empty folder.
        repo_id: the judge's name on the Hub.
        hub_card: the card that the Hub has now.
        overwrite: drop what was edited in the Hub's card.
        from_here: whether the Hub's card is one that was pushed from this folder.
    """
    config = JudgeConfig.load(folder / "config.json")
    report = read_report(folder, config)
    measured = (MEASURED,) if section(folder) else ()  # not what was measured with other weights
    for name in ("config.json", "model.safetensors", *measured, *(REPORT_FILES if report else ())):
        source = folder / name
        if not source.exists() and name in (MEASURED, *REPORT_FILES):
            continue
        _refuse_outside(source, folder)
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, staging / name)
    _copy_method(staging)
    results = eval_results(config, report or {})
    if results:
        (staging / RESULTS).parent.mkdir()
        (staging / RESULTS).write_text(results, encoding="utf-8")
    card = str(folder_card(folder, repo_id))
    (staging / CARD).write_text(_card(folder / CARD, hub_card, card, overwrite, from_here), encoding="utf-8")


def eval_results(config: JudgeConfig, report: dict[str, Any]) -> str:
    """The judge's AUC by Hub dataset, in the form of `.eval_results`; empty where no dataset of the Hub was used.

    The task's name is the judge's own, so that no AUC of a judge turns up among a benchmark's scores of models.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    datasets = hub_datasets(config)
    entries = [
        EvalResultEntry(
            dataset_id=datasets[source["source"]],
            task_id="selfjudge_mismatch_auc",
            value=round(source["auc"], 4),
            notes="ROC-AUC of the judge on mismatched draft tokens of held-out prompts; not a score of the pair",
        )
        for source in report.get("sources", [])
        if source["source"] in datasets and source.get("auc") is not None
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False) if entries else ""


def _card(path: Path, hub_card: str | None, new: str, overwrite: bool, from_here: bool) -> str:
    """The card to publish: the freshly generated one around what a person wrote, in the folder or on the Hub."""
    here = path.read_text(encoding="utf-8") if path.is_file() else ""
    here_edited, there_edited = is_edited(here), is_edited(hub_card or "")
    if here_edited and there_edited and not (overwrite or from_here or same_hand(here, hub_card or "")):
        one, other = updated(here, new), updated(hub_card or "", new)
        if one != other:
            raise ValueError(
                f"The card was edited by hand both in {path} and on the Hub. Copy what the Hub's README.md has into "
                "yours, then push with --overwrite-card."
            )
    if here_edited:
        return updated(here, new)
    if there_edited and not overwrite:
        return updated(hub_card or "", new)
    return new


def _push(
    stage: Callable[[Path, str | None], None], repo_id: str, options: PushOptions, own: Sequence[str] = ()
) -> Pushed:
    """Push what `stage` puts into a folder; of the files `own`, those that it does not put there are deleted."""
    repository = Repository(repo_id, options.revision, options.token)
    if constants.HF_HUB_OFFLINE and not options.dry_run:
        raise ConnectionError("HF_HUB_OFFLINE is set, so nothing can be pushed. Unset it, or ask for a dry run.")
    with tempfile.TemporaryDirectory(prefix="selfjudge-") as name, real_reason(repository):
        validate_repo_id(repo_id)
        staging = Path(name)
        if options.dry_run:
            stage(staging, None)
            return Pushed(repo_id, None, _sizes(staging), False)
        api = HfApi(token=options.token)
        stage(staging, _hub_card(repository))  # whatever is wrong with the judge shows before a repository is made
        repo_id = api.create_repo(repo_id, private=options.private, exist_ok=True).repo_id
        if options.revision and not options.create_pr:
            api.create_branch(repo_id, branch=options.revision, exist_ok=True)
        before = api.repo_info(repo_id, revision=options.revision).sha
        commit = api.create_commit(  # not upload_folder, which may spread the files over several commits
            repo_id,
            _operations(api, repo_id, staging, options, own),
            commit_message=options.commit_message,
            revision=options.revision,
            create_pr=options.create_pr,
        )
        return Pushed(repo_id, commit.commit_url, _sizes(staging), commit.oid != before)


def _operations(
    api: HfApi, repo_id: str, staging: Path, options: PushOptions, own: Sequence[str]
) -> list[CommitOperationAdd | CommitOperationDelete]:
    made = _sizes(staging)
    files = filter_repo_objects(made, allow_patterns=options.allow_patterns, ignore_patterns=options.ignore_patterns)
    added = [CommitOperationAdd(name, staging / name) for name in files]
    there = api.list_repo_files(repo_id, revision=options.revision)
    stale = {name for name in own if name not in made}  # of a judge that was there before
    if options.delete_patterns is not None:
        stale.update(filter_repo_objects(there, allow_patterns=options.delete_patterns))
    kept = {operation.path_in_repo for operation in added} | {".gitattributes"}
    return [*added, *(CommitOperationDelete(name) for name in there if name in stale and name not in kept)]


def _hub_card(repository: Repository) -> str | None:
    """The card that the repository has now, if any."""
    for revision in dict.fromkeys((repository.revision, None)):  # a new branch starts from main
        try:
            path = hf_hub_download(repository.id, CARD, revision=revision, token=repository.token)
        except RevisionNotFoundError:
            continue
        except LocalEntryNotFoundError:
            raise ConnectionError("no answer") from None
        except (RepositoryNotFoundError, EntryNotFoundError):
            return None
        return Path(path).read_text(encoding="utf-8")
    return None


def _digest(card: str) -> str:
    return hashlib.sha256(card.encode("utf-8", "replace")).hexdigest()


def _copy_method(folder: Path) -> None:
    (folder / METHOD.name).mkdir(parents=True, exist_ok=True)
    for name in METHOD_FILES:
        shutil.copyfile(METHOD / name, folder / METHOD.name / name)


def _refuse_outside(path: Path, folder: Path) -> None:
    """A link that leaves the folder could publish any file of this machine."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is a link out of the judge's folder, to {path.resolve()}. Replace it by the file.")


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
