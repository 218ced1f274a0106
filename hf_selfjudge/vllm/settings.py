"""What the user asks for: the entry "selfjudge" of vLLM's additional config, and one request's own value.

Knows nothing of vLLM. Everything is checked here, before an engine starts or a request is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..config import check_theta, shown
from ..judge import SelfJudgeVerifier
from ..rules import JudgeRule, Rule, as_rule, is_spec, never_relax, parse_rule
from ..rules.spec import GUARDS, JUDGE
from .approval import OFF, judge_of

KEY = "selfjudge"
"""The entry's name in the additional config, in `SamplingParams.extra_args` and in `vllm_xargs`."""

OFF_WORD = "off"
MODES = ("two-stage", "alignment-only")


@dataclass(frozen=True)
class Settings:
    """`--additional-config '{"selfjudge": {...}}'`; without the entry the engine is stock."""

    judge: str
    """A judge's folder or Hub id, or a rule's spec such as "topk:2"."""
    threshold: str | float | None = None
    """The operating point of requests that bring none: a name, a theta in [0, 1], or "off"; None is the judge's own."""
    mode: str = "two-stage"
    """Who accepts: "two-stage" (the exact rule or the judge) or "alignment-only" (exact: the judge is not asked)."""
    require: str | None = None
    """A rule's spec that must accept as well, such as "floor:0.01"."""
    never_relax: tuple[str, ...] = ()
    """Kinds of tokens that are never relaxed: "digits", "special"."""
    revision: str | None = None
    """Branch, tag or commit of a judge on the Hub."""
    strict_pair: bool = False
    """Refuse, instead of warning, a judge that was trained for another target or draft."""
    timing: bool = False
    """Measure the judge's share of the engine's steps (on a GPU this waits for the device twice per step)."""

    def __post_init__(self) -> None:
        _expect(isinstance(self.judge, str) and bool(self.judge), "judge", self.judge, "a folder, Hub id or rule spec")
        for name in ("require", "revision"):
            value = getattr(self, name)
            _expect(value is None or (isinstance(value, str) and bool(value)), name, value, "a string")
        if isinstance(self.mode, str) and self.mode == "judge-only":
            raise ValueError(
                "selfjudge mode 'judge-only' does not exist in vLLM, whose own test always accepts aligned tokens. "
                "Use 'two-stage', or the Hugging Face loop."
            )
        for name in ("strict_pair", "timing"):
            _expect(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        _expect(self.mode in MODES, "mode", self.mode, f"one of {list(MODES)}")
        unknown = [kind for kind in self.never_relax if kind not in GUARDS]
        _expect(not unknown, "never_relax", unknown, f"names out of {list(GUARDS)}")
        if self.threshold is not None and not isinstance(self.threshold, str):
            check_theta(self.threshold, "selfjudge threshold")
        for name in ("judge", "require"):
            text = getattr(self, name)
            guarded = text is not None and is_spec(text) and "+" in text
            _expect(not guarded, name, text, 'a rule without "+"; the entry never_relax names what it never relaxes')
        if self.require is not None:
            parse_rule(self.require)
        if self.is_spec:
            free = JUDGE not in self.judge
            _expect(free, "judge", self.judge, "its folder alone; threshold, require and never_relax are entries")
            parse_rule(self.judge)
            _expect(self.threshold in (None, OFF_WORD), "threshold", self.threshold, f"none for rule {self.judge!r}")

    @property
    def is_spec(self) -> bool:
        """Whether `judge` is a training-free rule's spec."""
        return is_spec(self.judge)

    @classmethod
    def from_config(cls, additional_config: Any) -> Settings | None:
        """The settings in vLLM's additional config; None without an entry "selfjudge"."""
        if not isinstance(additional_config, Mapping) or additional_config.get(KEY) is None:
            return None
        found = additional_config[KEY]
        _expect(isinstance(found, Mapping), "entry", found, 'an object like {"judge": FOLDER, "threshold": "f1"}')
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in set(found) - set(known))
        _expect(not unknown, "entry", unknown, f"only the keys {known}")
        _expect("judge" in found, "entry", dict(found), "a key 'judge'")
        values = dict(found)
        guards = values.get("never_relax", ())
        _expect(isinstance(guards, (str, list, tuple)), "never_relax", guards, f"a list out of {list(GUARDS)}")
        values["never_relax"] = (guards,) if isinstance(guards, str) else tuple(guards)
        return cls(**values)

    def to_config(self) -> dict[str, Any]:
        """The additional config with these settings, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["never_relax"] = list(self.never_relax) or None
        return {KEY: {name: value for name, value in values.items() if value is not None and value is not False}}

    def rule(self, tokenizer: Any = None) -> Rule | None:
        """The rule with everything asked for; None if nothing may be relaxed.

        Args:
            tokenizer: needed for `never_relax`.
        """
        if self.mode == "alignment-only":
            return None
        rule = as_rule(self.judge) if self.is_spec else JudgeRule(self.load_judge())
        if self.require is not None:
            rule = rule & parse_rule(self.require)
        for kind in self.never_relax:
            rule = never_relax(rule, kind, tokenizer)
        return rule

    def load_judge(self) -> SelfJudgeVerifier:
        """The judge from its folder or the Hub."""
        return SelfJudgeVerifier.from_pretrained(self.judge, revision=self.revision)


def parse_threshold(value: Any, rule: Rule | None) -> float:
    """One threshold as a theta for `DraftRows.thetas`: a number, a name the judge has, "off", or None (its default).

    Raises:
        ValueError: with what was found and what this judge or rule takes.
    """
    judge = None if rule is None else judge_of(rule)
    if rule is None:
        return OFF
    check_threshold(value, None if judge is None else judge.verifier.config.thresholds)
    if value == OFF_WORD:
        return OFF
    return 0.0 if judge is None else judge.verifier.config.theta(value)


def check_threshold(value: Any, names: Mapping[str, float] | None) -> None:
    """Refuse a threshold that a judge with these named ones does not take; None: a rule without thresholds."""
    if value is None or value == OFF_WORD:
        return
    if names is None:
        raise ValueError(
            f"selfjudge threshold is {shown(value)}, but the engine runs a training-free rule, which has no threshold. "
            f"Give {OFF_WORD!r} for exact decoding, or nothing."
        )
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0
    if not is_number and not (isinstance(value, str) and value in names):
        raise ValueError(
            f"selfjudge threshold is {shown(value)}, expected a number in [0, 1], one of {sorted(names)}, or "
            f"{OFF_WORD!r} for exact decoding."
        )


def request_value(extra_args: Mapping[str, Any] | None) -> Any:
    """A request's own threshold in its extra arguments; None if it brings none."""
    return None if not extra_args else extra_args.get(KEY)


def _expect(ok: bool, what: str, found: Any, expected: str) -> None:
    if not ok:
        raise ValueError(f"Bad selfjudge settings: {what} is {shown(found)}, expected {expected}.")
