"""The registry, the playground's checker and AutoJudge+'s question."""

import json
import subprocess
import sys

import pytest

from hf_selfjudge.checkers import CHECKERS, get_checker
from hf_selfjudge.checkers.meaning import ask, read
from hf_selfjudge.playground.world import TASKS, generate


def test_every_checker_has_the_three_functions():
    assert set(CHECKERS) == {"math", "choice", "code", "playground"}
    for name in CHECKERS:
        checker = get_checker(name)
        assert all(callable(getattr(checker, function)) for function in ("outcome", "same", "correct"))


def test_an_unknown_checker_is_named_with_those_there_are():
    with pytest.raises(ValueError, match=r"'maths'.*math, choice, code, playground"):
        get_checker("maths")


def test_checkers_are_text_only():
    code = "import sys, hf_selfjudge.checkers; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    stub = "import types; sys.modules['hf_selfjudge'] = p = types.ModuleType('p'); p.__path__ = ['hf_selfjudge']"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {stub}; {code}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("task", sorted(TASKS))
def test_the_playground_has_an_outcome_only_where_the_answer_is_right(task):
    checker = get_checker("playground")
    for item in generate(task, "train", 5):
        reference = json.loads(json.dumps({"task": task, "facts": item.facts}))
        found = checker.outcome(item.response, reference)
        assert found is (None if task == "open_ended" else True)
        assert checker.correct(found, reference) is (task != "open_ended")
        assert checker.outcome("I do not know.", reference) is None
    assert checker.same(True, True)


def test_a_playground_reference_without_task_or_facts_is_refused():
    for reference, found in (({"task": "news"}, "no 'facts'"), ({"task": "chess", "facts": {}}, "'chess'")):
        with pytest.raises(ValueError, match=found):
            get_checker("playground").outcome("text", reference)


def test_the_question_holds_both_responses_in_an_order_fixed_by_the_seed():
    orders = set()
    for seed in range(20):
        text = ask("Why?", "Because of rain.", "Because of snow.", seed)
        assert text == ask("Why?", "Because of rain.", "Because of snow.", seed)
        assert "Why?" in text
        orders.add(text.index("rain") < text.index("snow"))
    assert orders == {True, False}


@pytest.mark.parametrize(
    ("reply", "same"),
    [
        ("[SAME]", True),
        ("They agree, so [SAME].", True),
        ("[ different ]", False),
        ("[DIFFERENT] although [SAME] was possible", False),
        ("SAME", None),
        ("", None),
    ],
)
def test_the_first_tag_is_the_verdict(reply, same):
    assert read(reply) is same
