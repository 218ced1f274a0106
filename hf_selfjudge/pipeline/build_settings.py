"""Everything a build is asked to do: the pair of models and the settings of all stages, checked against each other.

Knows nothing of torch, so that `selfjudge build --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from .models import ModelSettings
from .settings import (
    CalibrateSettings,
    FitSettings,
    LabelSettings,
    MineSettings,
    PromptSettings,
    RespondSettings,
    ScoreSettings,
    Settings,
    expect,
)

GROUPS: dict[str, type[Settings]] = {
    "models": ModelSettings,
    "prompts": PromptSettings,
    "respond": RespondSettings,
    "mine": MineSettings,
    "score": ScoreSettings,
    "label": LabelSettings,
    "fit": FitSettings,
    "calibrate": CalibrateSettings,
}
"""The settings of a build by the name of their field in `BuildSettings`."""


@dataclass(frozen=True)
class BuildSettings:
    """The settings of all stages."""

    models: ModelSettings = field(default_factory=ModelSettings)
    prompts: PromptSettings = field(default_factory=PromptSettings)
    respond: RespondSettings = field(default_factory=RespondSettings)
    mine: MineSettings = field(default_factory=MineSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    label: LabelSettings = field(default_factory=LabelSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    calibrate: CalibrateSettings = field(default_factory=CalibrateSettings)

    def check(self, stages: Sequence[str]) -> None:
        """Refuse settings of these stages that other stages cannot serve, before any work starts."""
        if "mine" in stages and self.models.target and not self.models.draft:
            raise ValueError("Mining mismatches needs a draft, and none was named: give --draft (Hub id or folder).")
        if "fit" in stages:
            from .fit import expand  # it stands on torch

            for feature_set in self.fit.feature_sets:
                expand(feature_set)  # refuses unknown features
        if "label" in stages:
            lengths = ", ".join(map(str, self.score.lengths))
            found = self.label.length
            expect(found in self.score.lengths, "length", found, f"one of the lengths scored ({lengths})")
            expect(
                self.label.suffix != "rejoin" or self.score.rejoin, "rejoin", False, "True, because suffix is rejoin"
            )
        if "fit" in stages and self.label.rows == "with-originals":
            expect(self.score.originals, "originals", False, "True, because rows is with-originals")
        if "calibrate" in stages:
            names = ("f1", "recall", "youden", *(f"risk-{100 * risk:g}%" for risk in self.calibrate.risks))
            default = self.calibrate.default_threshold
            expect(default in names, "default_threshold", default, f"one of {', '.join(names)}")

    @classmethod
    def from_dict(cls, recorded: Mapping[str, Mapping[str, Any]]) -> Self:
        """The settings that `to_dict` gave; what is not in it has its default."""
        found = {}
        for name, kind in GROUPS.items():
            known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
            values = {key: value for key, value in recorded.get(name, {}).items() if key in known}
            found[name] = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
        return cls(**found)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain JSON values, by group."""
        return {name: getattr(self, name).to_dict() for name in GROUPS}

    def updated(self, given: Mapping[str, Any]) -> Self:
        """With some settings replaced; names are unique over all groups."""
        changes: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            changes.setdefault(group_of(name), {})[name] = value
        return replace(self, **{group: replace(getattr(self, group), **new) for group, new in changes.items()})


def group_of(name: str) -> str:
    """The group that a setting belongs to."""
    for group, kind in GROUPS.items():
        if name in {f.name for f in fields(kind)}:  # type: ignore[arg-type]
            return group
    raise ValueError(f"There is no setting {name!r}.")
