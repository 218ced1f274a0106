"""Programs: found in responses, run against tests of every form."""

from textwrap import indent

import pytest

from hf_selfjudge.checkers import code
from hf_selfjudge.checkers.sandbox import Limits

HUMANEVAL = {
    "prompt": "from typing import List\n\n\ndef helper(x):\n    return x + 1\n\n\ndef total(items: List[int]) -> int:\n"
    '    """Sum of the successors.\n    >>> total([1])\n    2\n    """\n',
    "test": "def check(candidate):\n    assert candidate([]) == 0\n    assert True, 'no test'\n"
    "    assert candidate([1, 2]) == 5\n    for n in range(3):\n        assert candidate([n]) == n + 1\n",
    "entry_point": "total",
}
BODY = "    return sum(helper(item) for item in items)\n"
WHOLE = f"def total(items: List[int]) -> int:\n{BODY}"
NL = "\n"
FUNCTIONAL = {
    "entry_point": "add",
    "tests": [{"input": "1\n2", "output": "3"}, {"input": "[1]\n[2]", "output": "[1, 2]"}],
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(code, "LIMITS", Limits(cpu_seconds=1, wall_seconds=1.5))


@pytest.mark.parametrize(
    "response",
    [
        BODY,
        f"```python\n{BODY}```",
        f"Here:\n```python\n{WHOLE}```\nIt sums.",
        f"```\n{WHOLE}```",
        f"```python\n{WHOLE}",
        f"```python\n{WHOLE}```\nRun it:\n```bash\npython x.py\n```\nOutput:\n```\n3\n```",
        f"```py\nprint('first idea')\n```\nBetter:\n```py\n{WHOLE}```\nUse:\n```python\nprint(total([1]))\n```",
        f"{HUMANEVAL['prompt']}{BODY}",
        "return sum(helper(item) for item in items)",
        f"{BODY}\nThis function isn't slow.\n\nprint('cut o",
        f"Sure, I can help.\n\n{WHOLE}\nI hope it's fine.",
        f"```python\nfrom __future__ import annotations\ndef helper(x): return x + 1\n{WHOLE}```",
        f"```python\nimport re\nPATTERN = '\\d'\n{WHOLE}```",
        f"```python\n{WHOLE}\nif __name__ == '__main__':\n    print(input())\n```",
        f"~~~python\n{WHOLE}~~~\nIt sums.",
        f"````python\n{WHOLE}````",
        f"1. Here it is:\n\n{indent(f'```python{NL}{WHOLE}```', '   ')}\n2. It sums.",
        f"- The body:\n\n{indent(f'```python{NL}{BODY}```', '  ')}\n",
        f"```python\n{WHOLE}\nprint('x' * 10**6)\nraise SystemExit(0)\n```",
    ],
)
def test_a_right_function_is_found_in_every_dress(response):
    found = code.outcome(response, HUMANEVAL)
    assert found == [True, True, True]
    assert code.correct(found, HUMANEVAL)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    return 0\n", [True, False, False]),
        ("    return 5\n", [False, True, False]),
        (
            "    if len(items) == 2:\n        raise ValueError\n    return sum(map(helper, items))\n",
            [True, False, True],
        ),
        # a loop that never ends keeps what was passed before it
        ("    while len(items) == 2: pass\n    return sum(map(helper, items))\n", [True, False, False]),
        ("    return 'nothing'\n", None),
        ("    return\n", None),
    ],
)
def test_each_assert_counts_for_itself(body, expected):
    assert code.outcome(body, HUMANEVAL) == expected


LATER = "    global calls\n    calls = globals().get('calls', 0) + 1\n"


@pytest.mark.parametrize("then", ["raise ValueError", "while True: pass", "import os; os._exit(0)"])
@pytest.mark.parametrize("loop", ["for n in range(3):", "n = -1\n    while n < 2:\n        n += 1"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_assert_in_a_loop_counts_if_the_loop_ends(then, loop, nested):
    inner = "        for _ in range(1):\n            assert found == n\n" if nested else "        assert found == n\n"
    # the call stands outside of the assert, so nothing but the end of the loop tells that it went well
    tests = f"def check(f):\n    assert f(7) == 7\n    {loop}\n        found = f(n)\n{inner}    assert f(8) == 8\n"
    reference = {"prompt": "def f(n):\n", "test": tests, "entry_point": "f"}
    assert code.outcome("    return n\n", reference) == [True, True, True]
    assert code.outcome(f"{LATER}    if calls == 3:\n        {then}\n    return n\n", reference) == [True, False, False]
    assert code.outcome("    return n if n < 8 else 0\n", reference) == [True, True, False]
    assert code.outcome("    return n if n != 2 else 0\n", reference) == [True, False, True]


@pytest.mark.parametrize(
    "body",
    [
        "    import sys; sys.exit(0)\n",
        "    import os; os._exit(0)\n",
        "    import os; os.kill(os.getpid(), 9)\n",
        "    for word in ('ok', '0 1', 'passed'):\n        print(word, 0, 1, flush=True)\n",
        "    import os\n    os.write(1, b'\\n0 1\\n1 1\\n2 1\\n')\n    os._exit(0)\n",
        "    class Yes:\n        __eq__ = None\n    return Yes()\n",
        "    exit()\n",
        "    raise KeyboardInterrupt\n",
    ],
)
def test_leaving_early_or_printing_passes_nothing(body):
    assert code.outcome(body, HUMANEVAL) is None


@pytest.mark.parametrize(
    "response", ["", "I cannot do that.", "```python\n```", "```bash\nls\n```", "42", "```\n3\n```"]
)
def test_no_program_no_outcome(response):
    assert code.extract(response, {"stdin": []}) is None
    assert code.outcome(response, HUMANEVAL) is None


def test_asserts_with_a_setup():
    reference = {
        "setup": "import math",
        "asserts": ["assert root(4) == 2", "assert math.isclose(root(2), 1.41421356237)"],
    }
    two = "```python\ndef root(x):\n    return x ** 0.5\n```\nfor example\n```python\nprint(root(9))\n```"
    assert code.outcome(two, reference) == [True, True]
    assert code.outcome("```python\ndef root(x):\n    return x // 2\n```", reference) == [True, False]


@pytest.mark.parametrize("reference", [{"functional": FUNCTIONAL}, FUNCTIONAL])
def test_functions_and_methods_with_json_arguments(reference):
    function = "```python\ndef add(a, b):\n    return a + b\n```"
    method = "```python\nclass Solution:\n    def add(self, a, b):\n        return 3 if a == 1 else (*a, *b)\n```"
    assert code.outcome(function, reference) == [True, True]
    assert code.outcome(method, reference) == [True, True]
    assert code.outcome("```python\ndef add(a, b):\n    return 3\n```", reference) == [True, False]


def test_programs_run_as_plain_python():
    bare = "```python\ndef root(x: Optional[int]):\n    return x ** 0.5\n```"
    assert code.outcome(bare, {"asserts": ["assert root(4) == 2"]}) is None  # Optional was never imported
    assert code.outcome("```python\nx: Missing = 3\nprint(x)\n```", {"stdin": [{"input": "", "output": "3"}]}) is None


def test_only_livecodebench_programs_find_the_usual_modules_imported():
    method = "```python\n{}class Solution:\n    def add(self, a: List[int], b: List[int]):\n        return {}\n```"
    counted, tests = "sorted(Counter(a + b))", [{"input": "[1]\n[2]", "output": "[1, 2]"}]
    theirs = {"entry_point": "add", "tests": tests}
    assert code.outcome(method.format("", counted), theirs) == [True]
    assert code.outcome(method.format("from __future__ import annotations\n", "a + b"), theirs) == [True]
    assert code.outcome(method.format("", counted), {"functional": theirs}) is None
    cases = [{"input": "2\n3", "output": "8"}]
    program = "```python\na, b = map(int, sys.stdin)\nprint(pow(a, b), file=open(1, 'w'))\n```"
    assert code.outcome(program, {"tests": cases}) == [True]
    assert code.outcome(program, {"stdin": cases}) is None


@pytest.mark.parametrize("key", ["stdin", "tests"])
def test_whole_programs(key):
    reference = {
        key: [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4"}, {"input": "x", "output": "?"}]
    }
    assert code.outcome("```python\na, b = map(int, input().split())\nprint(a + b)\n```", reference) == [
        True,
        True,
        False,
    ]
    assert code.outcome("```python\nprint(float(3))\n```", reference) == [True, False, False]
    assert code.outcome("```python\nprint(5)\n```", reference) is None
    fails = "```python\nprint(3)\nraise SystemExit(1)\n```"
    assert code.outcome(fails, reference) is None


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("1  2 \n\n", "1 2\n", True),
        ("1.0\n", "1", True),
        ("YES", "yes", False),
        ("1\n2", "1 2", False),
        ("", "0", False),
        ("nan", "nan", True),
        ("0.30000000000000004", "0.3", False),
    ],
)
def test_outputs_are_compared_by_line_and_number(found, expected, same):
    assert code.same_output(found, expected) is same


def test_references_that_say_nothing_are_refused():
    for reference in ({}, {"test": "x"}, {"stdin": [], "asserts": []}, "tests"):
        with pytest.raises(ValueError, match="code reference"):
            code.outcome("print(1)", reference)
    with pytest.raises(ValueError, match="not Python"):
        code.outcome("def f(): return 1", {"asserts": ["assert f( =="]})


def test_outcomes_are_the_same_if_the_same_tests_pass():
    assert code.same([True, False], [True, False])
    assert not code.same([True, False], [True, True])
    assert not code.correct([True, False], None)
    assert not code.correct(None, None)


def test_a_broken_text_is_read_in_no_time():
    import time

    begun = time.perf_counter()
    for text in ("#### 1\n" * 20000, "def f(:\n" * 3000, "```\n" * 10000, "```python\nx = (\n" * 2000):
        code.extract(text, {"stdin": []})
    assert time.perf_counter() - begun < 5.0
