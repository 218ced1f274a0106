"""Scores against hand-checked answers, good and bad, and the figures beside them."""

import json
import pickle

import pytest
import yaml
from rouge_score.rouge_scorer import RougeScorer

from hf_selfjudge.lm_eval import EVAL_TASKS
from hf_selfjudge.lm_eval.response import FIGURES, Response, figures, ratio_of_sums, total
from hf_selfjudge.lm_eval.scorers import (
    SUBJECTS,
    loosely,
    rouge,
    same_answer,
    score_code,
    score_gsm8k,
    score_mmlu,
    score_playground,
)

STATS = {"cycles": 4, "new_tokens": 10, "drafted": 20, "matched": 5, "judged_in": 1, "accepted": 6, "seconds": 0.5}


def document(reference, **columns):
    return {"reference": json.dumps(reference), **columns}


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("So she has 1,250 in all. The answer is 1,250.", "... #### 1250", True),
        ("The answer is $1250.00.", "#### 1,250", True),
        ("The answer is 18 eggs.", "#### 18", True),
        ("It falls to -7 degrees. The answer is -7.", "#### -7", True),
        ("The answer is 7.", "#### -7", False),
        ("First 18, then 19. The answer is 19.", "#### 18", False),
        ("#### 42", "#### 42", True),
        ("I cannot say.", "#### 42", False),
        ("", "#### 0", False),
    ],
)
def test_gsm8k(response, answer, right):
    assert score_gsm8k(document(answer), [response]) == {"exact_match": float(right)}


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"[answer]\frac{1}{2}[/answer]", r"\dfrac12", True),
        ("[answer]0.5[/answer]", r"\frac{1}{2}", True),
        (r"[answer] $\left(3, \frac{\pi}{2}\right)$ [/answer]", r"\left( 3, \frac{\pi}{2} \right)", True),
        (r"I tried [answer]4[/answer], but no: [answer]5[\answer]", "5", True),
        (r"\boxed{4} is a step. [answer]5[/answer]", "5", True),
        ("[answer]5", "5", True),
        (r"[Answer]\boxed{x^2+1}[/Answer]", "x^2 + 1", True),
        (r"[answer]90^\circ[/answer]", "90", True),
        (r"[answer]\text{Evelyn}[/answer]", r"\text{evelyn}", True),
        (r"Thus \boxed{\sqrt{2}}.", r"\sqrt2", True),
        ("[answer][/answer]", "5", False),
        (r"[answer]\frac{2}{1}[/answer]", r"\frac{1}{2}", False),
        ("[answer](3, 4)[/answer]", "(4, 3)", False),
        ("[answer]x[/answer]", "-x", False),
        ("The last word is 5. [answer]6[/answer]", "5", False),
    ],
)
def test_tagged_mathematics(response, gold, right):
    assert same_answer(response, gold) is right


def test_loose_writing_keeps_what_matters():
    assert loosely(r"\left( 3, X \right).") == "(3,x)"
    assert loosely("ab") != loosely("ba")


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("Step by step ... The answer is (B).", True),
        ("**Answer:** b)", True),
        (r"$\boxed{\text{B}}$", True),
        ("A is wrong and C is wrong.\n\nB", True),
        ("The answer is (A). No, wait: the answer is (B).", True),
        ("The answer is (D).", False),
        ("A good question.", False),
        ("", False),
    ],
)
def test_mmlu_in_odd_formats(response, right):
    found = score_mmlu(document({"answer": "B"}, subject="virology"), [response])
    assert found == {"acc": float(right), "acc_virology": float(right)}
    assert score_mmlu(document({"answer": "B"}, subject="own"), [response]) == {"acc": float(right)}


def test_every_subject_has_a_figure_in_the_yaml():
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    config = yaml.load((EVAL_TASKS / "mmlu_cot" / "mmlu_cot.yaml").read_text(), Loader)
    metrics = {entry["metric"] for entry in config["metric_list"]}
    assert len(SUBJECTS) == 57
    assert metrics == {"acc", *FIGURES, *(f"acc_{subject}" for subject in SUBJECTS)}


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("print(int(input()) ** 2)", True),
        ("print(int(input()) * 2)", False),
        ("import os\nos.fork()\nopen('big', 'w').write('x' * 10)\nwhile True: print('x' * 1000000)", False),
    ],
)
def test_programs_run_in_the_sandbox(program, right):
    tests = [{"input": "3\n", "output": "9\n", "testtype": "stdin"}]
    found = score_code(document({"tests": tests, "entry_point": None}), [f"Here:\n```python\n{program}\n```"])
    assert found == {"pass_at_1": float(right)}


@pytest.mark.parametrize(
    ("reference", "summary"),
    [
        (
            "Police say the two men fled on foot .\nNobody was hurt .",
            "The police said that two men were fleeing on foot.",
        ),
        ("Ebola patient is in fair condition .", "Stocks rose 2.5% on Monday."),
        ("Mayor resigns after vote .", ""),
    ],
)
def test_rouge_is_the_reference_librarys(reference, summary):
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(reference, summary)
    assert rouge(reference, summary) == {name: score.fmeasure for name, score in expected.items()}


def test_playground_items_are_scored_by_their_world():
    from hf_selfjudge.playground.world import generate

    item, other = generate("word_problems", "test", 2)
    made = document({"task": item.task, "facts": dict(item.facts)})
    assert score_playground(made, [item.response])["score"] == 1.0
    assert score_playground(made, [other.response])["score"] < 1.0
    open_ended = generate("open_ended", "test", 1)[0]
    made = document({"task": open_ended.task, "facts": dict(open_ended.facts)})
    assert set(score_playground(made, ["Yes, of course."])) == {"words"}


def test_a_response_is_text_that_keeps_its_counts():
    response = pickle.loads(pickle.dumps(Response("The answer is 4.", STATS)))  # what lm_eval's cache does
    assert response == "The answer is 4."
    assert response.stats == STATS
    assert json.dumps(response) == '"The answer is 4."'
    scored = score_gsm8k(document("#### 4"), [response])
    assert scored["exact_match"] == 1.0
    assert set(scored) == {"exact_match", *FIGURES}
    assert figures("plain") == {}


def test_figures_are_ratios_of_sums():
    long = {**STATS, "cycles": 1, "accepted": 5}
    pairs = [figures(Response("a", one))["accepted_per_cycle"] for one in (STATS, long)]
    assert ratio_of_sums(pairs) == 11 / 5  # not the mean of 6 / 4 and 5
    summed = total([STATS, long])
    assert (summed["responses"], summed["accepted_per_cycle"], summed["tokens_per_second"]) == (2, 11 / 5, 20.0)
    assert total([]) == {"responses": 0}
