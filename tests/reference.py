"""Two-stage verification once more, slowly: no cache, one position at a time, written from the method's definition.

Every draft step and every verification reads the whole text from its start, rules and features are plain float64
arithmetic on single rows. Shares no code with the package's rules, features, verification or loop.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

FLOOR = -100.0  # log-probabilities below this count as this


@dataclass
class View:
    """What one verification knows; target rows and states are one more than the drafted tokens d."""

    d: list[int]
    logits: list[np.ndarray]
    hidden: list[np.ndarray]
    draft_logits: list[np.ndarray]
    scores: list[np.ndarray]
    draft_scores: list[np.ndarray]


Decision = Callable[[View, int], bool]
Process = Callable[[list[int], np.ndarray], np.ndarray]


@dataclass
class Result:
    """A response and how it came about; the counts carry the names of the package's statistics."""

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    replacements: list[tuple[int, int, int]] = field(default_factory=list)
    cycles: int = 0
    drafted: int = 0
    matched: int = 0
    judged_in: int = 0
    rejected: int = 0
    discarded: int = 0
    bonus: int = 0


class Reference:
    """Decodes with a target and a draft; forwards are remembered by the text they read, never by a KV cache."""

    def __init__(self, target, draft) -> None:
        self.target, self.draft = target, draft
        self._target_rows: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._draft_row: dict[tuple[int, ...], np.ndarray] = {}

    def decode(
        self,
        prompt: list[int],
        decide: Decision,
        mode: str = "two-stage",
        gamma: int = 5,
        max_new_tokens: int = 16,
        eos: tuple[int, ...] = (),
        process: Process = lambda text, row: row,
    ) -> Result:
        text, result = list(prompt), Result()
        while True:
            room = max_new_tokens - len(result.tokens)
            view = self.look(text, min(gamma, room - 1), eos, process)
            kept = self._verify(view, decide, mode, eos, result)
            text += kept
            if any(token in eos for token in kept) or len(result.tokens) >= max_new_tokens:
                return result

    def look(self, text: list[int], count: int, eos: tuple[int, ...] = (), process: Process = lambda t, r: r) -> View:
        """Draft up to `count` tokens and read them with the target."""
        view = View([], [], [], [], [], [])
        while len(view.d) < count and not (view.d and view.d[-1] in eos):
            row = self._draft_logits(text + view.d)
            view.draft_logits.append(row)
            view.draft_scores.append(process(text + view.d, row.copy()))
            view.d.append(int(np.argmax(view.draft_scores[-1])))
        logits, hidden = self._read(text + view.d)
        for index in range(len(text) - 1, len(text) + len(view.d)):
            view.logits.append(logits[index])
            view.hidden.append(hidden[index])
            view.scores.append(process((text + view.d)[: index + 1], logits[index].copy()))
        return view

    def _verify(self, view: View, decide: Decision, mode: str, eos: tuple[int, ...], result: Result) -> list[int]:
        kept: list[int] = []
        result.cycles += 1
        result.drafted += len(view.d)
        for index, token in enumerate(view.d):
            choice = int(np.argmax(view.scores[index]))
            aligned = token == choice
            relaxed = mode != "alignment-only" and view.scores[index][token] != -np.inf and decide(view, index)
            if not (relaxed or (aligned and mode != "judge-only")):
                self._emit(result, kept, choice, "correction")
                result.rejected += 1
                result.discarded += len(view.d) - index - 1
                return kept
            if aligned:
                result.matched += 1
            else:
                result.judged_in += 1
                result.replacements.append((len(result.tokens), choice, token))
            self._emit(result, kept, token, "matched" if aligned else "judged")
            if token in eos:
                result.discarded += len(view.d) - index - 1
                return kept
        result.bonus += 1
        self._emit(result, kept, int(np.argmax(view.scores[len(view.d)])), "bonus")
        return kept

    @staticmethod
    def _emit(result: Result, kept: list[int], token: int, source: str) -> None:
        kept.append(token)
        result.tokens.append(token)
        result.sources.append(source)

    @torch.no_grad()
    def _read(self, text: list[int]) -> tuple[np.ndarray, np.ndarray]:
        if tuple(text) not in self._target_rows:
            output = self.target(torch.tensor([text]), use_cache=False, output_hidden_states=True)
            rows = output.logits[0].float().numpy(), output.hidden_states[-1][0].float().numpy()
            self._target_rows[tuple(text)] = rows
        return self._target_rows[tuple(text)]

    @torch.no_grad()
    def _draft_logits(self, text: list[int]) -> np.ndarray:
        if tuple(text) not in self._draft_row:
            self._draft_row[tuple(text)] = (
                self.draft(torch.tensor([text]), use_cache=False).logits[0, -1].float().numpy()
            )
        return self._draft_row[tuple(text)]


# -- rules by their definitions; `view.scores` because rules see what the user's processors leave ----------------------


def log_probs(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    top = row.max()
    return row - top - math.log(sum(math.exp(value - top) for value in row))


def entropy(log_p: np.ndarray) -> float:
    return -sum(math.exp(lp) * max(lp, FLOOR) for lp in log_p)


def kl(log_p: np.ndarray, log_q: np.ndarray) -> float:
    return sum(math.exp(a) * (max(a, FLOOR) - max(b, FLOOR)) for a, b in zip(log_p, log_q, strict=True))


def rank(row: np.ndarray, token: int) -> int:
    return sum(1 for value in row if value > row[token])


def exact(view: View, j: int) -> bool:
    return int(np.argmax(view.scores[j])) == view.d[j]


def top_k(k: int = 2) -> Decision:
    return lambda view, j: rank(view.scores[j], view.d[j]) < k


def floor(bound: float = 0.01) -> Decision:
    return lambda view, j: math.exp(log_probs(view.scores[j])[view.d[j]]) >= bound


def margin(delta: float = 0.3, k: int = 2) -> Decision:
    def decide(view: View, j: int) -> bool:
        p = np.exp(log_probs(view.scores[j]))
        return rank(p, view.d[j]) < k and p[view.d[j]] >= p.max() - delta

    return decide


def typical(epsilon: float = 0.09, delta: float = 0.3) -> Decision:
    def decide(view: View, j: int) -> bool:
        log_p = log_probs(view.scores[j])
        return math.exp(log_p[view.d[j]]) > min(epsilon, delta * math.exp(-entropy(log_p)))

    return decide


def divergence(limit: float = 0.5, reverse: bool = False) -> Decision:
    def decide(view: View, j: int) -> bool:
        p, q = log_probs(view.scores[j]), log_probs(view.draft_scores[j])
        return (kl(q, p) if reverse else kl(p, q)) < limit

    return decide


def ensemble(weight: float = 0.7) -> Decision:
    def decide(view: View, j: int) -> bool:
        p, q = np.exp(log_probs(view.scores[j])), np.exp(log_probs(view.draft_scores[j]))
        return int(np.argmax(weight * p + (1 - weight) * q)) == view.d[j]

    return decide


def fly(bound: float = 0.3, window: int = 5, top: int = 3) -> Decision:
    def decide(view: View, j: int) -> bool:
        if exact(view, j):
            return True
        if j + window >= len(view.d):
            return False
        best = log_probs(np.sort(view.scores[j])[-top:])
        unsure = entropy(best) / math.log(top) >= bound
        return unsure and all(exact(view, i) for i in range(j + 1, j + window + 1))

    return decide


def any_of(*decisions: Decision) -> Decision:
    return lambda view, j: any(decide(view, j) for decide in decisions)


def all_of(*decisions: Decision) -> Decision:
    return lambda view, j: all(decide(view, j) for decide in decisions)


def protecting(decide: Decision, tokens: set[int]) -> Decision:
    return lambda view, j: decide(view, j) and view.d[j] not in tokens and int(np.argmax(view.scores[j])) not in tokens


# -- the judge; `view.logits` because it was trained on raw logits ---------------------------------------------------


def features(view: View, j: int, names: tuple[str, ...]) -> np.ndarray:
    log_p, z = log_probs(view.logits[j]), view.d[j]
    second, first = sorted(log_p)[-2:]
    ahead = range(j + 1, min(j + 5, len(view.d)))  # a row's own drafted tokens: a View has no filling
    ahead_log_p = [max(log_probs(view.logits[i])[view.d[i]], FLOOR) for i in ahead]
    hits = [int(np.argmax(view.logits[i])) == view.d[i] for i in ahead]
    values: dict[str, Callable[[], float | np.ndarray]] = {
        "hidden": lambda: view.hidden[j + 1],
        "previous_hidden": lambda: view.hidden[j],
        "log_p": lambda: max(log_p[z], FLOOR),
        "log_p_top": lambda: first,
        "s_prefix": lambda: max(log_p[z], FLOOR) - first,
        "rank": lambda: math.log(1 + rank(view.logits[j], z)),
        "entropy": lambda: entropy(log_p),
        "margin": lambda: first - max(second, FLOOR),
        "log_q": lambda: max(log_probs(view.draft_logits[j])[z], FLOOR),
        "kl_pq": lambda: kl(log_p, log_probs(view.draft_logits[j])),
        "kl_qp": lambda: kl(log_probs(view.draft_logits[j]), log_p),
        "next_hidden": lambda: view.hidden[j + 2] if ahead else np.zeros_like(view.hidden[0]),
        "ahead_known": lambda: len(ahead),
        "ahead_matches": lambda: ([*hits, False]).index(False),
        "next_log_p": lambda: ahead_log_p[0] if ahead else 0.0,
        "ahead_log_p": lambda: sum(ahead_log_p) / len(ahead) if ahead else 0.0,
    }
    return np.concatenate([np.atleast_1d(np.asarray(values[name](), dtype=np.float64)) for name in names])


def probability(view: View, j: int, names: tuple[str, ...], weights: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """P(acceptable) of a (multi-layer) logistic regression, given as (matrix, bias) per layer."""
    x = features(view, j, names)
    for depth, (matrix, bias) in enumerate(weights):
        x = matrix.astype(np.float64) @ x + bias.astype(np.float64)
        if depth < len(weights) - 1:
            x = np.maximum(x, 0)
    return 1 / (1 + math.exp(-x[0]))


def judge(names: tuple[str, ...], weights: list[tuple[np.ndarray, np.ndarray]], theta: float) -> Decision:
    return lambda view, j: probability(view, j, names, weights) > theta
