"""Factual consistency of a summary with its article, by an NLI model: entailed minus contradicted sentences.

The NLI model reads the article as premise and one sentence of the summary as hypothesis. Which of its outputs means
what comes from its config: the order differs from model to model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

BATCH = 16
PROMPTED = ("prompt", "prompt-sentences")
"""What stands before the folder of a chat model that is asked."""
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
    """Factual consistency of one summary; `model` as in `consistencies`."""
    return consistencies([(article, summary)], model)[0]


def check_model(model: str) -> None:
    """Refuse a model that cannot be found; named as in `consistencies`."""
    from transformers import AutoConfig

    kind, colon, folder = model.partition(":")
    try:
        AutoConfig.from_pretrained(folder if colon and kind in PROMPTED else model)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The NLI model {model!r} cannot be read ({str(error).splitlines()[0]}). Name another one by --nli-model "
            "(lm_eval: --metadata nli_model=...), or decode only."
        ) from None


def consistencies(pairs: Sequence[tuple[str, str]], model: str) -> list[Consistency]:
    """Factual consistency of many (article, summary).

    Args:
        pairs: articles and their summaries.
        model: folder or Hub id of an NLI model; prompt:FOLDER for a chat model that is asked about each summary, or
            prompt-sentences:FOLDER for one that is asked about each sentence.
    """
    kind, colon, folder = model.partition(":")
    prompted = bool(colon) and kind in PROMPTED
    parts = [[summary] if kind == "prompt" and prompted else split_sentences(summary) for _, summary in pairs]
    parts = [[text for text in texts if any(map(str.isalnum, text))] for texts in parts]
    asked = [(article, text) for (article, _), texts in zip(pairs, parts, strict=True) for text in texts]
    if prompted:
        from .prompted_nli import support

        readings = [_from_support(value) for value in support(asked, folder)]
    else:
        readings = _classify(asked, model)
    found, first = [], 0
    for texts in parts:
        own, first = readings[first : first + len(texts)], first + len(texts)
        sums = [sum(reading[at] for reading in own) / max(1, len(own)) for at in (0, 1)]
        found.append(Consistency(sums[0], sums[1], len(texts)))
    return found


def _from_support(value: float) -> tuple[float, float]:
    """Both readings of P(supported): it is entailed or it contradicts, nothing is neutral."""
    return (1.0 if value > 0.5 else -1.0, 2 * value - 1)


def _classify(asked: Sequence[tuple[str, str]], model: str) -> list[tuple[float, float]]:
    """Both readings of each (article, sentence), by an NLI model."""
    import torch

    if not asked:
        return []
    nli, tokenizer, order = _load(model)
    entailed, contradicted = order["entailment"], order["contradiction"]
    # similar lengths share a batch; the longest first, so that what does not fit into memory fails at once
    places = sorted(range(len(asked)), key=lambda at: -len(asked[at][0]) - len(asked[at][1]))
    found = [(0.0, 0.0)] * len(asked)
    with torch.no_grad():
        for first in range(0, len(places), BATCH):
            batch = places[first : first + BATCH]
            articles, sentences = ([asked[at][side] for at in batch] for side in (0, 1))
            inputs = tokenizer(articles, sentences, truncation="only_first", max_length=_longest(nli),
                               padding=True, return_tensors="pt")  # fmt: skip
            chances = nli(**inputs.to(nli.device)).logits.float().softmax(-1).cpu()  # (batch, labels)
            best = chances.argmax(-1)
            classes = (best == entailed).float() - (best == contradicted).float()
            margins = chances[:, entailed] - chances[:, contradicted]
            for at, *reading in zip(batch, classes.tolist(), margins.tolist(), strict=True):
                found[at] = (reading[0], reading[1])
    return found


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
