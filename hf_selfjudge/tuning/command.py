"""The subcommand `tune`. Heavy imports happen when it runs."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

DESCRIPTION = (
    "Answer prompts several times with judge decoding that accepts at random, see which kinds of accepted tokens lead "
    "away from exact decoding's text and, for prompts with a checker, from the answer that most rollouts give, and "
    "write a linear judge that accepts what wins many tokens for little harm. No ground truth is used. Use the judge "
    "beside --rule. Run the same command again after an interruption: finished parts are kept."
)


def add_tune(commands: Any) -> None:
    """Add `tune` to the `selfjudge` command."""
    parser = commands.add_parser(
        "tune",
        help="weigh judges and scalars anew by what becomes of answers in the decoding loop",
        description=textwrap.fill(DESCRIPTION, 100),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  selfjudge tune --judges judge --target T --draft D --prompts gsm8k:1500 --out tuned\n"
        "  selfjudge compare --rules 'judge:tuned@sweep&floor:0.02+digits' ...",
    )
    add = parser.add_argument
    add("--target", default="playground", help="folder, Hub id, or playground (default: %(default)s)")
    add("--draft", default="playground", help="folder, Hub id, or playground (default: %(default)s)")
    add("--judges", default="", help="folders or Hub ids of linear judges whose opinions count, separated by commas")
    add("--prompts", action="append", required=True, help="as in `selfjudge build`; may be repeated")
    add("--rule", default="floor:0.02+digits", help="explored is only what this rule accepts, in the grammar of "
        "`selfjudge compare` (default: %(default)s)")  # fmt: skip
    add("--rollouts", type=int, default=4, help="explored answers of each prompt (default: %(default)s)")
    add("--share", type=float, default=0.5, help="of the rule's tokens, those accepted (default: %(default)s)")
    add("--gamma", type=int, default=5, help="tokens drafted per block (default: %(default)s)")
    add("--max-new-tokens", type=int, default=512, help="longest answer (default: %(default)s)")
    add("--max-prompt-tokens", type=int, help="skip longer prompts")
    add("--seed", type=int, default=0, help="seed of prompts and lots (default: %(default)s)")
    add("--device", default="cpu", help="cpu, cuda, ... (default: %(default)s)")
    add("--dtype", default="float32", help="float32, bfloat16, ... (default: %(default)s)")
    add("--batch-size", type=int, default=64, help="answers decoded together (default: %(default)s)")
    add("--workers", type=int, default=1, help="processes, each with its own copy of the pair (default: %(default)s)")
    add("--with", action="append", default=[], dest="earlier", metavar="FOLDER", help="the --out of an earlier run on "
        "other prompts, whose answers count as well; may be repeated")  # fmt: skip
    add("--out", type=Path, required=True, help="folder of the judge")
    parser.set_defaults(run=run_tune)


def run_tune(out: Path, **options: Any) -> None:
    """Tune; the last line of stdout is one JSON document."""
    from transformers.utils import logging

    from ..evaluation.workers import BenchSettings
    from ..pipeline.settings import PromptSettings
    from .judge import DEFAULT_THRESHOLD
    from .tune import TuneSettings, tune

    logging.disable_progress_bar()
    bench = {name: options.pop(name) for name in BenchSettings.__dataclass_fields__ if name in options}
    prompts = PromptSettings(
        tuple(options.pop("prompts")),
        max_prompt_tokens=options.pop("max_prompt_tokens"),
        seed=options["seed"],
    )
    judges = tuple(folder.strip() for folder in options.pop("judges").split(",") if folder.strip())
    options["earlier"] = tuple(options["earlier"])
    found = tune(TuneSettings(BenchSettings(**bench), judges, prompts, **options), out)
    sys.stdout.write("What accepting one more token changes, by the predicted cost, the costliest fifth first:\n")
    for part in found["effects"]:
        kept = "" if part["kept"] is None else f", kept {part['kept']:+.2f} +- {part['kept_error']:.2f}"
        sys.stdout.write(
            f"{part['decisions']:7d} decisions: resemblance {part['resemblance']:+.2f} +- "
            f"{part['resemblance_error']:.2f} points each{kept}, {part['gain']:.1f} tokens won\n"
        )
    rule = f"judge:{out}@{DEFAULT_THRESHOLD}&{found['settings']['rule']}"
    sys.stdout.write(
        f"The judge is in {out}, with the thresholds {', '.join(found['thresholds'])}. Use it beside the rule that was "
        f'explored: generate(..., judge="{rule}", tokenizer=tokenizer)\n'
    )
    sys.stdout.write(json.dumps(found) + "\n")
