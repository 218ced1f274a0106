"""The subcommands `push` and `card`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

PUSH_EXAMPLE = """
examples:
  selfjudge push judge org/judge-for-my-pair --private
  selfjudge push judge org/judge-for-my-pair --revision v2 --dry-run
  selfjudge push method org/selfjudge                    (the custom_generate method alone)
"""


def add_hub(commands: Any) -> None:
    """Add the subparsers."""
    push = commands.add_parser(
        "push",
        help="publish a judge on the Hub",
        description="Upload a judge's own files (config, weights, card, report, custom_generate) in one commit. "
        "Stages' results in build/ stay here. What people wrote into the card, here or on the Hub, is kept.",
        epilog=PUSH_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    push.add_argument("judge", metavar="JUDGE", help="the judge's folder, or `method` for custom_generate alone")
    push.add_argument("repo", metavar="REPO", help="name on the Hub, org/name; made if it is not there")
    push.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    push.add_argument("--revision", help="branch to push to, made if it is not there (default: main)")
    push.add_argument(
        "--dry-run", action="store_true", help="only list what would be uploaded; asks nothing of the Hub"
    )
    push.add_argument("--token", help="Hub token (default: the one of `hf auth login` or HF_TOKEN)")
    push.add_argument("--message", help="message of the commit")
    push.add_argument("--overwrite-card", action="store_true", help="drop what was edited in the Hub's card")
    push.set_defaults(run=_push)
    card = commands.add_parser(
        "card",
        help="write a judge's README.md again",
        description="Make the card of a judge from its config, the report of its build and what was measured. Text "
        "between the card's markers for you, and cards without markers, are kept.",
    )
    card.add_argument("judge", metavar="JUDGE", type=Path, help="the judge's folder")
    card.add_argument("--repo", help="name on the Hub to use in the card's examples")
    card.add_argument(
        "--compare",
        metavar="FILE",
        type=Path,
        action="append",
        help="compare.json of a comparison that asks this judge, by its folder's name: its figures go into "
        "measured.json in the folder and from there into the card; may be repeated",
    )
    card.add_argument("--print", dest="show", action="store_true", help="print the card instead of writing it")
    card.add_argument("--overwrite", action="store_true", help="replace the generated part even if it was edited")
    card.set_defaults(run=_card)


def _push(
    judge: str,
    repo: str,
    private: bool | None,
    revision: str | None,
    dry_run: bool,
    token: str | None,
    message: str | None,
    overwrite_card: bool,
) -> None:
    from .push import PushOptions, push, push_method

    options = PushOptions(private, revision, token, dry_run, overwrite_card, message or PushOptions.commit_message)
    is_method = judge == "method" and not (Path(judge) / "config.json").exists()
    done = push_method(repo, options) if is_method else push(judge, repo, options)
    width = max(map(len, done.files))
    for name, size in done.files.items():
        sys.stdout.write(f"{name:<{width}}  {size:>9,} bytes\n")
    if dry_run:
        sys.stdout.write(f"dry run: nothing was uploaded to {repo}\n")
    elif done.is_new:
        sys.stdout.write(f"pushed: {done.url}\n")
    else:
        sys.stdout.write(f"{done.repo_id} is up to date: no commit was made\n")


def _card(judge: Path, repo: str | None, compare: list[Path] | None, show: bool, overwrite: bool) -> None:
    from .card import folder_card
    from .folder import renew_card
    from .measured import gather, record, render

    if not (judge / "config.json").is_file():
        raise ValueError(f"{judge} is not a judge's folder: it has no config.json. Give the folder of a build.")
    if show:
        measured = render(gather(judge, compare)) if compare else None
        sys.stdout.write(str(folder_card(judge, repo, measured)))
        return
    if compare:
        record(judge, compare)
    text = {True: "written", False: "is up to date, or was edited by hand and is kept (--overwrite replaces the rest)"}
    sys.stdout.write(f"{judge / 'README.md'}: {text[renew_card(judge, repo, overwrite)]}\n")
