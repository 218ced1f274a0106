"""What a comparison is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from .matched import CRITERIA
from .workers import BenchSettings

SELECT_ON = ("train", "held-out", "test")
TESTED = ("all", "chosen", "verdict", "none")


@dataclass(frozen=True)
class CompareSettings:
    """What is compared, on what, and how points are chosen."""

    bench: BenchSettings
    rules: tuple[str, ...]
    """Lists in the grammar of `grammar`."""
    tasks: tuple[str, ...] = ("playground",)
    items: int = 500
    """Test items of each task without a count."""
    selection_items: int | None = None
    """Items of each task that choose the points; as many as test items if None."""
    selection_tasks: tuple[str, ...] = ()
    """Tasks that choose the points, in the grammar of `tasks`; the test tasks if empty."""
    select_on: str = "train"
    """Where those come from: the training split, further items of the test split, or the test items themselves."""
    test: str = "all"
    """Which points are decoded on the test items: all; those that some criterion chose, or only the verdict's (and
    `also`); or none: the selection alone."""
    shares: tuple[float, ...] = ()
    """Shares of the mismatches that swept judges accept, one point each; many and the named thresholds if empty."""
    also: tuple[str, ...] = ()
    """Rules that are decoded on the test items whatever is chosen."""
    seed: int = 0
    """Seed of the test items."""
    selection_seed: int = 2000
    """Seed of selection items from the training split."""
    max_prompt_tokens: int | None = None
    """Items with longer prompts are left out."""
    nli_model: str | None = None
    """What judges factual consistency; the task's own if None."""
    margin: float = 1.0
    """Points of score that a matched point may lose."""
    criterion: str = "within"
    """Which matched score the verdict is about; all are reported."""
    ours: str | None = None
    """The method the others are compared with; the first one with a judge if None."""
    resamples: int = 10_000
    score_workers: int = 1
    """Processes that score answers; 0 means one per core."""
    mix: bool = False
    """Whether results of other devices or versions may stand beside new ones."""
    intervals: bool = False
    """Whether the figure shows intervals."""

    def __post_init__(self) -> None:
        for name, found, known in (
            ("select-on", self.select_on, SELECT_ON),
            ("test", self.test, TESTED),
            ("criterion", self.criterion, CRITERIA),
            ("mode", self.bench.mode, ("two-stage", "judge-only")),
        ):
            if found not in known:
                raise ValueError(f"{name} is {found!r}, expected one of {', '.join(known)}.")
        counts = {"items": self.items, "resamples": self.resamples}
        for name in ("selection_items", "max_prompt_tokens"):
            counts[name] = 1 if getattr(self, name) is None else getattr(self, name)
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name.replace('_', '-')} is {count}, expected at least 1.")
        for name in ("seed", "selection_seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name.replace('_', '-')} is {getattr(self, name)}, expected at least 0.")
        if self.score_workers < 0:
            raise ValueError(f"score-workers is {self.score_workers}, expected 0 (one per core) or more.")
        if not self.margin >= 0:
            raise ValueError(f"margin is {self.margin}, expected a number of points >= 0.")
        self._check_selection()

    def _check_selection(self) -> None:
        """Refuse ways of choosing that contradict each other."""
        if self.selection_tasks and self.select_on != "train":
            raise ValueError(
                f"selection-tasks are given and select-on is {self.select_on!r}; give one of them: the selection tasks "
                "say themselves where their items come from."
            )
        if not all(0.0 < share < 1.0 for share in self.shares):
            raise ValueError(f"shares are {self.shares}, expected numbers in (0, 1).")
        if self.test != "all" and self.select_on == "test":
            raise ValueError(
                f"test is {self.test!r}, but select-on is 'test': points are chosen before they are tested; choose "
                "them on other items, or give --test all."
            )
        if self.also and self.test == "all":
            raise ValueError(
                "also is given, but every rule is tested; add the rules to --rules, or give --test chosen."
            )
