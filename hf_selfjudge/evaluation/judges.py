"""The judges of a comparison: loaded once, checked before any model is, and rules built from points of the grammar."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from ..config import VECTOR_FEATURES
from ..features import Block
from ..judge import SelfJudgeVerifier
from ..rules import JudgeRule, Rule, never_relax, parse_rule, tokens_where
from ..rules.spec import JUDGE, as_threshold, join_terms, split_judge
from .grammar import Point
from .providers import model_folder

ACCEPTED_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""A swept judge gets the thetas that accept these shares of the mismatches it would be asked about."""


class Judges:
    """Judges by folder as written in the rules, each loaded when it is first asked for.

    A folder may also be a Hub id, or the name of a provider with an embedded judge.
    """

    def __init__(self) -> None:
        self._judges: dict[str, SelfJudgeVerifier] = {}
        self._guarded = cache(tokens_where)  # reads the whole vocabulary

    def __getitem__(self, folder: str) -> SelfJudgeVerifier:
        if folder not in self._judges:
            self._judges[folder] = SelfJudgeVerifier.from_pretrained(model_folder(folder, "judge"))
        return self._judges[folder]

    def check_sizes(self, hidden_size: int) -> None:
        """Refuse judges, of those loaded, that read hidden states of another size than the target's."""
        for folder, judge in self._judges.items():
            config = judge.config
            if config.hidden_size != hidden_size and not set(VECTOR_FEATURES).isdisjoint(config.features):
                raise ValueError(
                    f"The judge {folder} was trained on hidden states of size {config.hidden_size}, the target's have "
                    f"{hidden_size}; give judges of this pair."
                )

    def theta(self, atom: str) -> float:
        """The theta of a judge atom."""
        folder, threshold = split_judge(atom)
        return self[folder].config.theta(None if threshold is None else as_threshold(threshold))

    def identity(self, point: Point) -> str:
        """The point with every judge replaced by the hash of its weights and its theta: equal text, equal rule."""

        def name(atom: str) -> str:
            if not atom.startswith(JUDGE):
                return atom
            return f"{JUDGE}{weights_hash(self[split_judge(atom)[0]])}@{self.theta(atom)!r}"

        return Point("", tuple(tuple(map(name, atoms)) for atoms in point.terms), point.guards).spec

    def rule(self, point: Point, tokenizer: Any) -> Rule:
        """The point as a rule."""

        def build(atom: str) -> Rule:
            if not atom.startswith(JUDGE):
                return parse_rule(atom)
            return JudgeRule(self[split_judge(atom)[0]].with_threshold(self.theta(atom)))

        rule = join_terms(point.terms, build)
        for guard in point.guards:
            rule = never_relax(rule, self._guarded(guard, tokenizer))
        return rule


class Recorder(Rule):
    """Accepts nothing and writes down what judges say where exact verification stops: the decisions they would face."""

    needs_draft_logits = True

    def __init__(self, judges: dict[str, SelfJudgeVerifier]) -> None:
        self._rules = {folder: JudgeRule(judge) for folder, judge in judges.items()}
        self.probabilities: dict[str, list[float]] = {folder: [] for folder in judges}

    def accept(self, block: Block) -> torch.Tensor:
        """An empty mask. (batch, gamma)"""
        matches = block.matches & block.drafted
        first = matches.long().cumprod(-1).sum(-1)  # (batch,) where exact verification stops
        places = torch.arange(block.draft_tokens.shape[1], device=first.device)
        asked = (places[None] == first[:, None]) & block.drafted
        for folder, rule in self._rules.items():
            probability = rule.to(block.draft_tokens.device).weigh(block)[1]
            assert probability is not None
            self.probabilities[folder] += probability[asked].tolist()
        return torch.zeros_like(matches)


def sweep_thetas(
    probabilities: Sequence[float], named: Iterable[float] = (), shares: Sequence[float] = ()
) -> list[float]:
    """Thetas from strict to lax: by quantiles of P(acceptable), and those that the judge has names for.

    With `shares`, only the thetas that accept these shares of the mismatches.
    """
    if not probabilities:
        raise ValueError("No mismatch between draft and target on the selection items: there is nothing to sweep.")
    rejected = 1 - torch.tensor(shares or ACCEPTED_SHARES, dtype=torch.float64)
    found = torch.quantile(torch.tensor(probabilities, dtype=torch.float64), rejected).tolist()
    rounded = {float(f"{theta:.6g}") for theta in (*found, *(() if shares else named))}
    return sorted(rounded - {1.0}, reverse=True)  # theta = 1 accepts nothing: exact decoding is there anyway


def weights_hash(judge: SelfJudgeVerifier) -> str:
    """A short hash of what a judge computes: its features and its weights."""
    found = hashlib.sha256("+".join(judge.config.features).encode())
    for name, tensor in sorted(judge.state_dict().items()):
        found.update(f"{name}{tuple(tensor.shape)}".encode())
        found.update(tensor.float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]
