"""Rules written as text, and everything `judge=` may be.

    SPEC   = EITHER {"+" GUARD}
    EITHER = BOTH {"|" BOTH}                   any of them accepts ...
    BOTH   = ATOM {"&" ATOM}                   ... where all of these accept
    ATOM   = NAME {":" NUMBER}                 a rule of `RULES`, such as topk:2 or fly:0.3:5
           | "judge:" FOLDER ["@" THRESHOLD]   a judge's folder or Hub id; without @ at its default threshold
    GUARD  = "digits" | "special"              tokens that the rule never relaxes

For example judge:my-judge@f1&floor:0.02+digits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial, reduce
from operator import and_, or_
from typing import Any

import torch

from ..judge import SelfJudgeVerifier
from .base import NeverRelax, Rule
from .learned import JudgeRule
from .training_free import RULES

JUDGE = "judge:"
GUARDS = ("digits", "special")
Terms = tuple[tuple[str, ...], ...]
"""Atoms: any of the outer ones, of which all inner ones."""
_GUARD = re.compile(rf"\+({'|'.join(GUARDS)})$")


def parse_rule(spec: str, tokenizer: Any = None) -> Rule:
    """A rule from its spec, such as "topk:2", "fly:0.3:5" or "judge:FOLDER@f1&floor:0.02+digits".

    Args:
        spec: in the grammar above.
        tokenizer: needed for a guard.
    """
    terms, guards = split_spec(spec)
    if guards and tokenizer is None:
        raise ValueError(f"Rule {spec!r} has the guard {guards[0]!r}, which needs tokenizer= to find its tokens.")
    rule = join_terms(terms, partial(_parse_atom, spec=spec))
    for guard in guards:
        rule = never_relax(rule, guard, tokenizer)
    return rule


def is_spec(text: str) -> bool:
    """Whether a text is a rule's spec and not a judge's folder or Hub id."""
    return any(mark in text for mark in ":&|") or _GUARD.sub("", text) in RULES


def split_spec(spec: str) -> tuple[Terms, tuple[str, ...]]:
    """The atoms of a spec, and its guards."""
    guards: list[str] = []
    body = spec
    while match := _GUARD.search(body):
        guards.insert(0, match[1])
        body = body[: match.start()]
    terms = tuple(tuple(atom.strip() for atom in part.split("&")) for part in body.split("|"))
    if not all(atom for atoms in terms for atom in atoms):
        raise ValueError(f"Rule {spec!r} has an empty part; expected a rule such as topk:2 on both sides of & and |.")
    return terms, tuple(dict.fromkeys(guards))


def check_guard(text: str, spec: str) -> None:
    """Refuse an unknown guard behind an atom's numbers."""
    if "+" in text:
        raise ValueError(
            f"Rule {spec!r} ends in the guard {text.split('+', 1)[1]!r}; expected one of {', '.join(GUARDS)}."
        )


def join_terms(terms: Terms, build: Callable[[str], Rule]) -> Rule:
    """The rule that accepts where all of some atoms do."""
    return reduce(or_, (reduce(and_, map(build, atoms)) for atoms in terms))


def split_judge(atom: str) -> tuple[str, str | None]:
    """Folder and threshold of a judge atom; None without a threshold."""
    folder, at, threshold = atom.removeprefix(JUDGE).rpartition("@")
    return (folder, threshold) if at else (threshold, None)


def as_threshold(text: str) -> str | float:
    """A theta if it reads as a number, else the name of an operating point."""
    try:
        return float(text)
    except ValueError:
        return text


def as_rule(judge: SelfJudgeVerifier | Rule | str | os.PathLike[str], tokenizer: Any = None) -> Rule:
    """What `judge=` accepts, as a rule: a judge, a rule, a rule's spec, or a judge's folder or Hub id.

    Args:
        judge: any of these.
        tokenizer: needed for a spec with a guard.
    """
    if isinstance(judge, Rule):
        return judge
    if isinstance(judge, SelfJudgeVerifier):
        return JudgeRule(judge)
    if isinstance(judge, str):
        return parse_rule(judge, tokenizer) if is_spec(judge) else JudgeRule(SelfJudgeVerifier.from_pretrained(judge))
    if isinstance(judge, os.PathLike):
        return JudgeRule(SelfJudgeVerifier.from_pretrained(os.fspath(judge)))
    raise TypeError(
        f"judge= got {type(judge).__name__}; expected a SelfJudgeVerifier, a rule of hf_selfjudge.rules, a rule's spec "
        "such as 'topk:2', or a judge's folder or Hub id."
    )


def never_relax(
    judge: SelfJudgeVerifier | Rule | str,
    tokens: Iterable[int] | Callable[[str], bool] | str,
    tokenizer: Any = None,
) -> NeverRelax:
    """A judge or rule that never relaxes the given tokens.

    Args:
        judge: what to restrict.
        tokens: token ids, a predicate on a token's text, or one of "digits" and "special".
        tokenizer: needed for a predicate or a name.
    """
    if isinstance(tokens, str) or callable(tokens):
        if tokenizer is None:
            raise ValueError(
                "never_relax needs tokenizer= to find tokens by a predicate or by name; or pass token ids."
            )
        ids = tokens_where(tokens, tokenizer)
    else:
        ids = [int(token) for token in tokens]
    return NeverRelax(as_rule(judge, tokenizer), torch.tensor(sorted(ids), dtype=torch.long))


def tokens_where(tokens: Callable[[str], bool] | str, tokenizer: Any) -> list[int]:
    """Ids of the tokens whose text satisfies a predicate, or of a named kind."""
    if tokens == "special":
        return [int(token) for token in tokenizer.all_special_ids]
    if tokens == "digits":
        tokens = _has_digit
    if isinstance(tokens, str):
        raise ValueError(f"never_relax knows no tokens named {tokens!r}; expected 'digits' or 'special'.")
    size = len(tokenizer)
    texts = tokenizer.batch_decode([[token] for token in range(size)])
    return [token for token, text in enumerate(texts) if tokens(text)]


def _parse_atom(atom: str, spec: str) -> Rule:
    if not atom.startswith(JUDGE):
        return _training_free(atom, spec)
    folder, threshold = split_judge(atom)
    if not folder or threshold == "":
        raise ValueError(f"Rule {spec!r}: expected judge:FOLDER or judge:FOLDER@THRESHOLD, found {atom!r}.")
    check_guard(threshold or "", spec)
    at = None if threshold is None else as_threshold(threshold)
    return JudgeRule(SelfJudgeVerifier.from_pretrained(folder, threshold=at))


def _training_free(atom: str, spec: str) -> Rule:
    check_guard(atom, spec)
    name, *numbers = atom.split(":")
    if name not in RULES:
        raise ValueError(
            f"Unknown rule {atom!r}{'' if atom == spec else f' in {spec!r}'}; expected one of {sorted(RULES)}, with "
            "numbers behind it ('topk:2'), or judge:FOLDER@THRESHOLD."
        )
    rule, types = RULES[name]
    if len(numbers) > len(types):
        raise ValueError(f"Rule {spec!r} has {len(numbers)} numbers, but {name} takes at most {len(types)}.")
    try:
        values = [cast(number) for cast, number in zip(types, numbers, strict=False)]
    except ValueError:
        raise ValueError(f"Rule {spec!r}: {numbers} are not the numbers that {name} takes.") from None
    return rule(*values)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)
