"""The `selfjudge` command. Heavy imports happen inside the subcommands, so that --help answers at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import __version__
from ..bench.command import add_bench
from ..evaluation.command import add_compare
from ..hub.command import add_hub
from ..lm_eval.command import add_eval, add_fc_check
from ..tuning.command import add_tune
from .stages import Parser, add_commands

ADVICE = {
    "OutOfMemoryError": "The device's memory is too small for this: give a smaller batch size, fewer workers, fewer or "
    "shorter prompts, or a smaller model.",
    "SafetensorError": "A file of weights is broken or incomplete: download or make that model again.",
    "BrokenProcessPool": "The system ends processes that take too much memory: give fewer --workers.",
}
"""What to do about errors of other libraries. They go by name: importing what defines them would take a second."""


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run a subcommand."""
    parser = argparse.ArgumentParser(
        prog="selfjudge",
        description="Judge decoding for Hugging Face transformers: speculative decoding that also accepts draft tokens "
        "which keep the meaning.",
    )
    parser.add_argument("--version", action="version", version=f"hf-selfjudge {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    _add_demo(commands)
    add_commands(commands)
    add_tune(commands)
    add_compare(commands)
    add_eval(commands)
    add_fc_check(commands)
    add_bench(commands)
    add_hub(commands)
    arguments = vars(parser.parse_args(argv))
    run = arguments.pop("run")
    arguments.pop("command")
    try:
        run(**arguments)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        parser.exit(2, f"selfjudge: {' '.join(str(error).split())}\n")
    except KeyboardInterrupt:
        parser.exit(130, "selfjudge: interrupted\n")
    except Exception as error:
        name = type(error).__name__
        if name not in ADVICE:
            raise
        parser.exit(2, f"selfjudge: {name}: {' '.join(str(error).split())[:300].rstrip('.')}. {ADVICE[name]}\n")


def _add_demo(commands: argparse._SubParsersAction[Parser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="judge decoding on the embedded pair: samples, a table and a page",
        description="Load the embedded pair (a 5.0M-parameter target, a 0.5M draft and a judge trained for them; "
        "nothing is downloaded), show three answers token by token, then decode held-out items exactly and with the "
        "judge and print task scores, accepted tokens and speed. A few minutes on two cores.",
    )
    demo.add_argument("--items", type=int, default=500, help="held-out items of each task (default: %(default)s)")
    demo.add_argument("--gamma", type=int, default=5, help="tokens drafted per block (default: %(default)s)")
    demo.add_argument(
        "--threshold",
        default="f1",
        help="the judge's operating point: a name in its config, or a theta in [0, 1] (default: %(default)s)",
    )
    demo.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the page (default: %(default)s)")
    demo.set_defaults(run=_demo)


def _demo(items: int, gamma: int, threshold: str, workers: int, out: Path) -> None:
    from ..playground.demo import DemoSettings
    from ..playground.demo import run as run_demo
    from ..rules.spec import as_threshold

    run_demo(DemoSettings(items=items, gamma=gamma, threshold=as_threshold(threshold), workers=workers), out)
