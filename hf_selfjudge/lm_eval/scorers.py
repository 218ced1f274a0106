"""Scores of single documents, as lm_eval's `process_results` wants them; the checkers themselves are `checkers`'.

Every score comes with the figures of the decoding (see `response`) where the model is ours.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..checkers import choice, code
from ..checkers import math as mathematics
from ..checkers import version as checkers_version
from .factual_consistency import consistencies
from .response import figures

Document = Mapping[str, Any]
ROUGE = ("rouge1", "rouge2", "rougeL")
_TAGS = re.compile(r"\\?\[answer\\?\](.*?)(?:\\?\[\s*[/\\]\s*answer\s*\\?\]|\Z)", re.DOTALL | re.IGNORECASE)
_SPACING = re.compile(r"\\(?:left|right|displaystyle|,|!|;|:|quad|qquad)|\^\s*\{?\\circ\}?|[\s$%]|\\%|\\\$")

SUBJECTS = tuple(
    """abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
    econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
    high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
    high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
    high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
    human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management marketing
    medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory
    professional_accounting professional_law professional_medicine professional_psychology public_relations
    security_studies sociology us_foreign_policy virology world_religions""".split()  # noqa: SIM905
)
"""MMLU's; each has its own figure."""


@cache
def version() -> str:
    """A hash of the code that scores: where it changes, kept scores are made anew."""
    return hashlib.sha256(checkers_version().encode() + Path(__file__).read_bytes()).hexdigest()[:12]


def score_gsm8k(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """Whether the final number is the right one."""
    found = mathematics.outcome(results[0])
    return {"exact_match": float(mathematics.correct(found, _reference(document))), **figures(results[0])}


def score_math(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """Whether the answer in the tags is the right one."""
    return {"exact_match": float(same_answer(results[0], _reference(document))), **figures(results[0])}


def same_answer(response: str, gold: str) -> bool:
    """Whether a response's last [answer] is the gold answer: as mathematics, or as the same text loosely written.

    A response that was cut off behind the opening tag has an answer; one without tags has the one that it states.
    """
    tagged = _TAGS.findall(response)
    if not tagged:
        return mathematics.correct(mathematics.outcome(response), gold)
    inside = tagged[-1].strip()
    if mathematics.correct(mathematics.outcome(f"[answer]{inside}[/answer]"), gold):
        return True
    return bool(inside) and loosely(inside) == loosely(gold)


def loosely(answer: str) -> str:
    """An answer without capitals, spacing, units of degree and percent, and a final full stop."""
    return _SPACING.sub("", answer).rstrip(".").lower()


def score_mmlu(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """Whether the stated letter is the right one, over all and for the subject."""
    reference = _reference(document)
    right = float(choice.correct(choice.outcome(results[0], reference), reference))
    subject = document["subject"]
    own = {f"acc_{subject}": right} if subject in SUBJECTS else {}
    return {"acc": right, **own, **figures(results[0])}


def score_code(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """Whether the program passes all tests: pass@1 of one response."""
    reference = _reference(document)
    return {"pass_at_1": float(code.correct(code.outcome(results[0], reference), reference)), **figures(results[0])}


def score_summary(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """Factual consistency with the article, and ROUGE with the highlights."""
    return {**score_summaries([(document, results[0])])[0], **figures(results[0])}


def score_summaries(answers: Sequence[tuple[Document, str]]) -> list[dict[str, float]]:
    """Factual consistency and ROUGE of many summaries, whose documents name one NLI model, in large batches."""
    models = {document["nli_model"] for document, _ in answers}
    if len(models) > 1:
        raise ValueError(f"The documents name the NLI models {', '.join(sorted(models))}; expected one for all.")
    references = [_reference(document) for document, _ in answers]
    pairs = [(reference["article"], text) for reference, (_, text) in zip(references, answers, strict=True)]
    found = consistencies(pairs, models.pop()) if pairs else []
    return [
        {"fc": one.by_class, "fc_probability": one.by_probability, **rouge(reference["highlights"], text)}
        for one, reference, (_, text) in zip(found, references, pairs, strict=True)
    ]


def score_rouge(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """ROUGE with the highlights alone: needs no NLI model."""
    return {**rouge(_reference(document)["highlights"], results[0]), **figures(results[0])}


def rouge(reference: str, summary: str) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, with stemming."""
    return {name: float(score.fmeasure) for name, score in _rouge_scorer().score(reference, summary).items()}


def score_playground(document: Document, results: Sequence[str]) -> dict[str, Any]:
    """The embedded world's own score; open-ended items have none."""
    from ..playground.world import TASKS

    reference = _reference(document)
    score = TASKS[reference["task"]].score(reference["facts"], results[0])
    # lm_eval wants at least one figure of every document, whatever the model
    own = {} if score is None else {"score": float(score)}
    return {**own, "words": float(len(results[0].split())), **figures(results[0])}


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)


def _reference(document: Document) -> Any:
    return json.loads(document["reference"])
