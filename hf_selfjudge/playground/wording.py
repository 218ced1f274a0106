"""How the playground varies its wording: who asks, which variant each slot of a text takes, and templates with slots.

Knows nothing of tasks. A *slot* is a place in a text with several equally good variants. A *free* slot picks one at
random. A *styled* slot mostly follows a fixed table keyed by who asks: a model that knows the table is sure of its
wording, and a model that does not know it writes something else that is just as good. A judge has to accept that
difference although the target gives it a low probability, so thresholding the target's probability is not enough.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """The words of a text, for tables that read better as prose."""
    return tuple(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """The phrases of a text, which commas part."""
    return tuple(phrase.strip() for phrase in text.split(","))


NAMES = words(
    """Mira Tomas Aiko Bram Celia Dario Elif Farah Goran Hana Ivo Jonas Kira Leif Maud Nadia Oskar Petra Quinn Rosa
    Sven Tara Umar Vera Wim Yara Zeno Anouk Boris Clara Diego Edda Felix Greta Hugo Ines Jakob Katja Lars Mona Nils
    Olga Pavel Rita Stefan Thea Ugo Wanda"""
)
TOWNS = words("Leeds Porto Turin Ghent Graz Lyon Malmo Bergen Split Cork")

FIDELITY = 0.995
"""How often a styled slot follows the table; the rest of the time it is random, so every variant stays in the data, but
with a probability as low as that of many errors: a rule that trusts the target's probability cannot tell them apart."""

_SLOTS = re.compile(r"\[([^\]]*)\]|<([^>]*)>")


@cache
def style_table(slot: str, step: int) -> tuple[bytes, bool]:
    """The fixed pseudo-random preferences of a styled slot: one byte per key, and whether the town is part of the key.

    Half of the slots depend on the asker's name alone and half on name and town together: the first are learnt early
    in training and the second late, so the two models differ in degree and not only in kind.
    """
    pairs = len(NAMES) * len(TOWNS)
    digest = hashlib.shake_256(f"{slot}@{step}".encode()).digest(pairs + 1)
    return digest[:pairs], digest[pairs] % 2 == 0


class Voice:
    """Chooses the variant of every slot of one item, from its random stream and from who asks.

    Args:
        rng: the item's random stream.
        name: index of the asker's name in `NAMES`.
        town: index of the asker's town in `TOWNS`.
        fidelity: how often a styled slot follows the style table.
    """

    __slots__ = ("fidelity", "name", "random", "town")

    def __init__(self, rng: random.Random, name: int, town: int, fidelity: float = FIDELITY) -> None:
        if not 0.0 <= fidelity <= 1.0:
            raise ValueError(f"fidelity is {fidelity}; it is a probability between 0 and 1")
        self.random = rng.random
        self.name = name
        self.town = town
        self.fidelity = fidelity

    @classmethod
    def draw(cls, rng: random.Random, fidelity: float = FIDELITY) -> Voice:
        """The voice of a random asker."""
        return cls(rng, int(rng.random() * len(NAMES)), int(rng.random() * len(TOWNS)), fidelity)

    def free(self, variants: Sequence[T]) -> T:
        """Any variant, with equal probability."""
        return variants[int(self.random() * len(variants))]

    def styled(self, slot: str, variants: Sequence[T], step: int = 0) -> T:
        """The variant this asker gets in this slot, or (with probability 1 - fidelity) any of them."""
        if self.random() >= self.fidelity:
            return variants[int(self.random() * len(variants))]
        return variants[self.preferred(slot, len(variants), step)]

    def preferred(self, slot: str, count: int, step: int = 0) -> int:
        """Index of the variant that the style table holds for this asker, of `count` variants."""
        table, with_town = style_table(slot, step)
        key = self.name * len(TOWNS) + self.town if with_town else self.name
        return table[key] % count

    def header(self) -> str:
        """The words at the head of a prompt that say who asks; this is what the style table is keyed by."""
        name, town = NAMES[self.name], TOWNS[self.town]
        return self.free((f"{name} from {town} asks:", f"{name} ({town}):", f"From {name} in {town}:"))


class Template:
    """A text with slots: `[a|b]` is free, `<a|b>` is styled, `{field}` is filled in last (also inside a variant).

    Args:
        name: prefix of the names of its styled slots; templates that share a name share their styles.
        text: the text, for example `"<So|Thus>, the answer is {answer}[.|!]"`.
    """

    __slots__ = ("_parts", "name", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        # (slot, variants): no slot name means a free choice, a single variant means plain text.
        self._parts: list[tuple[str | None, tuple[str, ...]]] = []
        end = 0
        for index, match in enumerate(_SLOTS.finditer(text)):
            self._parts.append((None, (text[end : match.start()],)))
            free, styled = match.groups()
            slot = None if styled is None else f"{name}.{index}"
            self._parts.append((slot, tuple((free if styled is None else styled).split("|"))))
            end = match.end()
        self._parts.append((None, (text[end:],)))

    def write(self, voice: Voice, fields: Mapping[str, Any], step: int = 0) -> str:
        """The text in this voice; `step` tells apart repeated uses of the template in one answer."""
        out: list[str] = []
        for slot, variants in self._parts:
            if len(variants) == 1:
                out.append(variants[0])
            elif slot is None:
                out.append(voice.free(variants))
            else:
                out.append(voice.styled(slot, variants, step))
        return "".join(out).format_map(fields)

    def alternatives(self) -> tuple[str, ...]:
        """The variants of a template that is one single slot, for checkers that must recognise each of them."""
        match = _SLOTS.fullmatch(self.text)
        if match is None:
            raise ValueError(f"template {self.name!r} is {self.text!r}, which is not one single slot")
        return tuple((match.group(1) or match.group(2)).split("|"))


def templates(name: str, *texts: str) -> tuple[Template, ...]:
    """Several forms of one text, each with its own styled slots."""
    return tuple(Template(f"{name}/{index}", text) for index, text in enumerate(texts))


def read_number(text: str) -> int:
    """The value of a number as written in a text, with or without thousands separators."""
    return int(text.replace(",", ""))


def write_number(voice: Voice, value: int, step: int = 0) -> str:
    """A number in this voice: `1,200` or `1200` as the asker likes; smaller ones have one form only."""
    return str(value) if value < 1000 else voice.styled("thousands", (str(value), f"{value:,}"), step)
