"""lm_eval: the model `selfjudge`, the benchmarks of `eval_tasks`, and the command `selfjudge eval`.

lm_eval is imported only by `model`; the scorers and loaders need nothing of it.
"""

from __future__ import annotations

from pathlib import Path

EVAL_TASKS = Path(__file__).parent / "eval_tasks"
"""The folder to give to lm_eval's --include_path."""


def register() -> None:
    """Make `--model selfjudge` known to lm_eval; more calls change nothing."""
    from . import model  # noqa: F401  (its decorator registers it)
