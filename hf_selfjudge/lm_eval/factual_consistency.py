"""Factual consistency of a summary with its article, by an NLI model: entailed minus contradicted sentences.

The NLI model reads the article as premise and one sentence of the summary as hypothesis. Which of its outputs means
what comes from its config: the order differs from model to model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

BATCH = 16
LONGEST = 512
"""Tokens that the NLI model reads, where it says nothing itself; articles are cut to fit, sentences are not."""
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof sen rep gov gen lt col sgt capt st jr sr vs etc inc ltd co corp no jan feb mar apr jun jul aug "  # noqa: SIM905
    "sep sept oct nov dec u.s u.k u.n e.g i.e a.m p.m".split()
)
_END = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)\]]*(?=\s)|\n+")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")
_LAST_WORD = re.compile(r"(\S+)[.]$")


@dataclass(frozen=True)
class Consistency:
    """Both readings of the measure, each in [-1, 1]; 0 for a summary without a sentence."""

    by_class: float
    """Share of sentences classified as entailed, less the share classified as contradicting."""
    by_probability: float
    """Mean of P(entailment) - P(contradiction)."""
    sentences: int


def split_sentences(text: str) -> list[str]:
    """The sentences of a summary: by end marks and by lines, without list marks; abbreviations end no sentence."""
    found: list[str] = []
    start = 0
    for end in [match.end() for match in _END.finditer(text)] + [len(text)]:
        piece = text[start:end]
        if end < len(text) and not piece.endswith("\n") and _is_abbreviated(piece):
            continue
        sentence = _BULLET.sub("", piece).strip()
        if any(character.isalnum() for character in sentence):
            found.append(sentence)
        start = end
    return found


def _is_abbreviated(piece: str) -> bool:
    last = _LAST_WORD.search(piece.rstrip())
    if last is None:
        return False
    word = last[1].strip("\"'(\u201c\u2018").lower()
    # an initial such as the J in "J. Smith"; a number alone at the start of a line marks an item of a list
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha()) or piece.strip()[:-1].isdecimal()


def label_order(names: Mapping[int, str]) -> dict[str, int]:
    """Which output is entailment, contradiction and neutral, out of a model's `id2label`."""
    order: dict[str, int] = {}
    for index, name in names.items():
        for label in ("entailment", "contradiction", "neutral"):
            if str(name).lower().startswith((label, label[:6])):
                order[label] = int(index)
    missing = [label for label in ("entailment", "contradiction") if label not in order]
    if missing:
        raise ValueError(
            f"The NLI model's labels are {dict(names)}; expected names such as ENTAILMENT and CONTRADICTION in its "
            "config's id2label. Take another --metadata nli_model=..."
        )
    return order


def consistency(article: str, summary: str, model: str) -> Consistency:
    """Factual consistency of one summary, by the NLI model of this folder or Hub id."""
    import torch

    sentences = split_sentences(summary)
    if not sentences:
        return Consistency(0.0, 0.0, 0)
    nli, tokenizer, order = _load(model)
    probabilities = []
    with torch.no_grad():
        for first in range(0, len(sentences), BATCH):
            batch = sentences[first : first + BATCH]
            inputs = tokenizer([article] * len(batch), batch, truncation="only_first", max_length=_longest(nli),
                               padding=True, return_tensors="pt")  # fmt: skip
            probabilities.append(nli(**inputs.to(nli.device)).logits.float().softmax(-1).cpu())
    found = torch.cat(probabilities)  # (sentences, labels)
    best = found.argmax(-1)
    entailed, contradicted = order["entailment"], order["contradiction"]
    by_class = ((best == entailed).float() - (best == contradicted).float()).mean()
    by_probability = (found[:, entailed] - found[:, contradicted]).mean()
    return Consistency(float(by_class), float(by_probability), len(sentences))


@lru_cache(maxsize=1)
def _load(model: str) -> tuple[Any, Any, dict[str, int]]:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    order = label_order(AutoConfig.from_pretrained(model).id2label)
    nli = AutoModelForSequenceClassification.from_pretrained(model).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return nli.to(device), AutoTokenizer.from_pretrained(model), order


def _longest(nli: Any) -> int:
    return min(LONGEST, int(getattr(nli.config, "max_position_embeddings", None) or LONGEST))
