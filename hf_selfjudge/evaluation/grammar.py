"""The rules to compare, as text: rules as in `hf_selfjudge.rules.spec`, with several values at once.

    RULES     = SPEC {"," SPEC}
    SPEC      = [METHOD "="] EITHER {"+" GUARD}
    EITHER    = BOTH {"|" BOTH}              any of them accepts ...
    BOTH      = ATOM {"&" ATOM}              ... where all of these accept
    ATOM      = NAME {":" NUMBERS}           a rule of `hf_selfjudge.rules`, such as topk:2 or fly:0.3:5
              | NAME ":sweep"                the rule over the values in `SWEEPS`
              | "judge:" FOLDER ["@" POINTS] a judge's folder or Hub id; without @ at its default threshold
    NUMBERS   = NUMBER {"/" NUMBER}          several values: one point each
              | INT ".." INT                 all integers from the first to the last
    POINTS    = POINT {"/" POINT}            a threshold's name or a theta in [0, 1]
              | "sweep"                      thetas by quantiles of the judge's P at mismatches of the selection items
    GUARD     = "digits" | "special"         tokens that the rule never relaxes

A SPEC that starts with "training-free" stands for one SPEC per rule in `SWEEPS`, with NAME:sweep in its place.

A spec with several values gives one point for every combination of them. All points with the same METHOD are one curve;
without a METHOD its name is the spec without its numbers, so that topk:2 and topk:3 are two points of one curve.

    topk:2..5                                       four points of the method topk
    ours=judge:my-judge@sweep&floor:0.01+digits     a curve over theta, named ours
    training-free+digits                            topk+digits, floor+digits, ...: each a curve
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ..rules.spec import JUDGE, RULES, Terms, as_threshold, check_guard, parse_rule, split_judge, split_spec
from ..rules.training_free import FLy

EXACT_RULE = "exact"
SWEEP = "sweep"
TRAINING_FREE = "training-free"
_NAMED = re.compile(r"([A-Za-z][\w .()-]*)=(.*)", re.DOTALL)
_RANGE = re.compile(r"(\d+)\.\.(\d+)")

_NATS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5)
_NUMBERS: dict[str, tuple[float, ...]] = {
    "topk": (2, 3, 4, 5, 6, 8, 10),
    "floor": (0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.0005),
    "margin": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
    "kl": _NATS,
    "reverse-kl": _NATS,
    "ensemble": (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05),
}
_EPSILONS = (0.4, 0.3, 0.2, 0.15, 0.09, 0.06, 0.04, 0.02, 0.01, 0.005, 0.001)
_UNSURE = (0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)

SWEEPS: dict[str, tuple[str, ...]] = {
    **{name: tuple(f"{value:g}" for value in values) for name, values in _NUMBERS.items()},
    # Medusa's two numbers go together: delta = sqrt(epsilon)
    "typical": tuple(f"{epsilon:g}:{epsilon**0.5:.4g}" for epsilon in _EPSILONS),
    "fly": tuple(f"{bound:g}:{window}" for window in (1, 2, 3, 4) for bound in _UNSURE),
}
"""Values of NAME:sweep, from strict to lax. FLy's published window of 5 needs blocks longer than that."""


@dataclass(frozen=True)
class Point:
    """One rule with all its numbers: one point of a method's curve."""

    method: str
    """Name of the curve."""
    terms: Terms
    """Atoms such as "topk:2" or "judge:FOLDER@0.4": any of the outer ones, of which all inner ones."""
    guards: tuple[str, ...] = ()
    """Kinds of tokens that are never relaxed."""

    @property
    def spec(self) -> str:
        """The point in the grammar."""
        return "|".join("&".join(atoms) for atoms in self.terms) + "".join(f"+{guard}" for guard in self.guards)

    @property
    def folders(self) -> list[str]:
        """The judges it asks."""
        return [split_judge(atom)[0] for atoms in self.terms for atom in atoms if atom.startswith(JUDGE)]


@dataclass(frozen=True)
class Atom:
    """One rule with the values to try."""

    head: str
    """The rule's name, or "judge:FOLDER"."""
    tails: tuple[str, ...]
    """What is put behind it, one point each; "@sweep" until the thetas are known."""

    def texts(self, thetas: Mapping[str, Sequence[float]]) -> list[str]:
        """The concrete atoms."""
        if self.tails == (f"@{SWEEP}",):
            return [f"{self.head}@{theta:.6g}" for theta in thetas[self.head.removeprefix(JUDGE)]]
        return [self.head + tail for tail in self.tails]


@dataclass(frozen=True)
class Spec:
    """One entry of the list of rules."""

    method: str
    terms: tuple[tuple[Atom, ...], ...]
    guards: tuple[str, ...]

    def points(self, thetas: Mapping[str, Sequence[float]]) -> list[Point]:
        """Every combination of the atoms' values; `thetas` are those of swept judges by folder."""
        flat = [atom.texts(thetas) for atoms in self.terms for atom in atoms]
        found = []
        for chosen in product(*flat):
            rest = iter(chosen)
            found.append(
                Point(self.method, tuple(tuple(next(rest) for _ in atoms) for atoms in self.terms), self.guards)
            )
        return found

    @property
    def folders(self) -> list[str]:
        """The judges it asks."""
        return [atom.head.removeprefix(JUDGE) for atoms in self.terms for atom in atoms if atom.head.startswith(JUDGE)]

    @property
    def swept_judges(self) -> list[str]:
        """Folders of the judges whose thetas are to be found."""
        return [
            atom.head.removeprefix(JUDGE)
            for atoms in self.terms
            for atom in atoms
            if atom.tails == (f"@{SWEEP}",) and atom.head.startswith(JUDGE)
        ]


def parse_rules(texts: Sequence[str], gamma: int) -> list[Spec]:
    """The specs of some comma-separated lists; exact comes first, given or not.

    Args:
        texts: what the user wrote.
        gamma: tokens per block, which bounds FLy's sweep: its window must end inside the block.

    Raises:
        ValueError: for the first spec that is not in the grammar or has a number that its rule does not take.
    """
    specs = []
    for entry in (entry.strip() for text in texts for entry in text.split(",")):
        rest = entry.removeprefix(TRAINING_FREE)
        swept = [name for name in SWEEPS if name != "fly" or gamma > 1]
        written = [entry] if rest == entry else [f"{name}:{SWEEP}{rest}" for name in swept]
        specs += [parse_spec(spec, gamma) for spec in written]
    exact = parse_spec(EXACT_RULE, gamma)
    return [exact, *(spec for spec in specs if spec != exact)]


def parse_spec(text: str, gamma: int) -> Spec:
    """One entry of the list of rules."""
    named = _NAMED.fullmatch(text)
    method, body = (named[1].strip(), named[2].strip()) if named else (None, text)
    written, guards = split_spec(body)
    terms = tuple(tuple(_atom(atom, text, gamma) for atom in atoms) for atoms in written)
    if method is None:
        heads = "|".join("&".join(atom.head for atom in atoms) for atoms in terms)
        method = heads + "".join(f"+{guard}" for guard in guards)
    return Spec(method, terms, guards)


def _atom(text: str, spec: str, gamma: int) -> Atom:
    if text.startswith(JUDGE):
        return _judge_atom(text, spec)
    check_guard(text, spec)
    return _plain_atom(text, spec, gamma)


def _judge_atom(text: str, spec: str) -> Atom:
    folder, threshold = split_judge(text)
    if not folder or threshold == "":
        raise ValueError(f"Rule {spec!r}: expected judge:FOLDER or judge:FOLDER@THRESHOLD, found {text!r}.")
    if threshold is None:
        return Atom(JUDGE + folder, ("",))
    check_guard(threshold, spec)
    for value in threshold.split("/"):
        theta = as_threshold(value)
        if not value or (isinstance(theta, float) and not 0.0 <= theta <= 1.0):
            raise ValueError(f"Rule {spec!r}: threshold {value!r}, expected a theta in [0, 1] or a threshold's name.")
    return Atom(JUDGE + folder, tuple(f"@{value}" for value in threshold.split("/")))


def _plain_atom(text: str, spec: str, gamma: int) -> Atom:
    name, *numbers = text.split(":")
    if name not in RULES:
        raise ValueError(
            f"Unknown rule {text!r} in {spec!r}; expected one of {_list(sorted(RULES))}, or judge:FOLDER@THRESHOLD."
        )
    if numbers == [SWEEP]:
        if name not in SWEEPS:
            raise ValueError(f"Rule {spec!r}: {name} has no number to sweep; rules with a sweep: {_list(SWEEPS)}.")
        tails = SWEEPS[name]
        if name == "fly":
            tails = tuple(tail for tail in tails if int(tail.split(":")[1]) < gamma)
        if not tails:
            raise ValueError(f"Rule {spec!r}: fly looks at tokens behind a mismatch, and blocks have {gamma}.")
        return Atom(name, tuple(f":{tail}" for tail in tails))
    tails = tuple("".join(f":{value}" for value in values) for values in product(*map(_values, numbers)))
    for tail in tails:
        try:
            rule = parse_rule(name + tail)
        except ValueError as error:
            raise ValueError(f"Rule {spec!r}: {error}") from None
        if isinstance(rule, FLy) and rule.window >= gamma:
            raise ValueError(
                f"Rule {spec!r}: fly looks at {rule.window} tokens behind a mismatch, and blocks have {gamma}."
            )
    return Atom(name, tails)


def _values(text: str) -> list[str]:
    """The values written at one place: one, a list with slashes, or a range of integers."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return text.split("/")
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ValueError(f"Range {text!r} goes down; write the smaller number first.")
    return [str(value) for value in range(first, last + 1)]


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names)
