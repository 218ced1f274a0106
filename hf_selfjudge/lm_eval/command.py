"""The subcommand `eval`: lm_eval's own command line with our model and tasks known to it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

EPILOG = """\
tasks: selfjudge_gsm8k, selfjudge_gsm8k_8shot, selfjudge_mmlu_cot, selfjudge_math500, selfjudge_cnn_dailymail,
  selfjudge_cnn_dailymail_rouge, selfjudge_humaneval, selfjudge_livecodebench,
  selfjudge_playground_word_problems (multiple_choice, news, open_ended), and lm_eval's own
model_args of selfjudge: pretrained, assistant, judge, threshold, rule, gamma, mode, never_relax, schedule; and hf's own
example:
  selfjudge eval --model selfjudge --model_args pretrained=T,assistant=D,judge=J,threshold=f1 \\
      --tasks selfjudge_gsm8k --apply_chat_template --batch_size 16 --output_path results
"""


def add_eval(commands: Any) -> None:
    """Add `eval` to the `selfjudge` command."""
    parser = commands.add_parser(
        "eval",
        help="lm_eval with our model and tasks: task score beside accepted length",
        description="Everything behind `eval` is lm_eval's (`selfjudge eval run --help` shows it); --model is "
        "selfjudge if not given.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # no argument looks like an option of ours, so that all of them reach lm_eval as they are
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("arguments", nargs="*", metavar="...", help="what lm_eval takes")
    parser.set_defaults(run=lambda arguments: run_eval(arguments, parser.print_help))


def run_eval(arguments: list[str], show_help: Callable[[], None]) -> None:
    """Register the model, add our tasks, and go on with lm_eval's command line."""
    if arguments in ([], ["-h"], ["--help"]):
        show_help()
        return
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise ImportError(
            f"`selfjudge eval` needs lm_eval, which cannot be imported ({error}); install it with "
            "`pip install 'hf-selfjudge[eval]'`."
        ) from None
    from . import register

    register()
    before = sys.argv
    sys.argv = ["lm-eval", *complete(arguments)]
    try:
        cli_evaluate()
    finally:
        sys.argv = before


def complete(arguments: list[str]) -> list[str]:
    """The arguments with our folder of tasks and our model, where others are not asked for."""
    from . import EVAL_TASKS

    if not arguments or arguments[0] in ("ls", "validate") or not {"-h", "--help"}.isdisjoint(arguments):
        return arguments
    written = {argument.partition("=")[0] for argument in arguments}
    added = [] if "--include_path" in written else ["--include_path", str(EVAL_TASKS)]
    if written.isdisjoint({"--model", "-M", "--config", "-C"}):
        added += ["--model", "selfjudge"]
    return [*arguments, *added]


def add_fc_check(commands: Any) -> None:
    """Add `fc-check` to the `selfjudge` command."""
    parser = commands.add_parser(
        "fc-check",
        help="how far a measure of factual consistency can be trusted",
        description="Score the highlights of articles beside ones that cannot be right: those of another article, and "
        "the same with one number or name replaced by another. AUC: how often the real ones score higher (0.5: it "
        "cannot tell them apart, 1: always). The last line of stdout is one JSON document.",
    )
    add = parser.add_argument
    add("--nli-model", required=True, help="an NLI model's folder or Hub id; prompt:FOLDER or prompt-sentences:FOLDER "
        "for a chat model that is asked about each summary or sentence")  # fmt: skip
    add("--rows", required=True, help="a .jsonl, .json, .csv or .parquet file (.gz too) with article and highlights")
    add("--count", type=int, help="how many rows (default: all)")
    add("--seed", type=int, default=0, help="decides which rows and what is replaced (default: %(default)s)")
    parser.set_defaults(run=run_fc_check)


def run_fc_check(nli_model: str, rows: str, count: int | None, seed: int) -> None:
    """Check a measure and print what it found."""
    import json

    from transformers.utils import logging

    from .fc_check import check, in_words, read_rows

    logging.disable_progress_bar()
    found = check(read_rows(rows, count, seed), nli_model, seed)
    sys.stdout.write(in_words(found) + "\n" + json.dumps(found) + "\n")
