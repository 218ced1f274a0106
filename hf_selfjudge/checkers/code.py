"""Programs: the outcome is which of the tests pass.

The reference says what the tests are:
    {"prompt", "test", "entry_point"}                    HumanEval: a function to complete and `check(candidate)`
    {"asserts": [...], "setup": "..."}                   MBPP: assert statements, and code to run before them
    {"stdin": [{"input", "output"}, ...]}                whole programs
    {"functional": {"entry_point", "tests": [...]}}      functions or methods of Solution: a JSON argument per line
    {"tests": [{..., "testtype"}], "entry_point"}        LiveCodeBench's own rows, stdin or functional
Other keys are left alone. LiveCodeBench's programs find the usual modules imported, as in its own harness.
"""

from __future__ import annotations

import ast
import builtins
import re
import secrets
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from .sandbox import Limits, run, run_many

HARNESS = Path(__file__).with_name("harness.py")
LIMITS = Limits()
FORMS = ("test", "asserts", "stdin", "functional", "tests")
PYTHON = frozenset({"", "py", "python", "python3", "py3", "pycon"})
MOST_BLOCKS, MOST_CUTS = 10, 20
_PARSING = threading.Lock()  # the warning filters are global
_FENCE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)(?:^[ \t]*(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)
_STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
# the builtins come last but one: operator and io have their own `pow` and `open`
PRELUDE = (
    "".join(f"from {name} import *\n" for name in [*_STARRED.split(), "builtins", "typing"])
    + f"import {', '.join(_STARRED.split())}\n"
    + "sys.setrecursionlimit(50000)\n"
)
"""What LiveCodeBench's own harness puts in front of every program, whose prompts show code without imports."""
_CODE_LINE = re.compile(r"^(?:def|class|import|from|async def|@\w)", re.MULTILINE)


def outcome(response: str, reference: Mapping[str, Any]) -> list[bool] | None:
    """Which tests the response's program passes.

    None if there is no program, and also if it passes no test: a program that does not work cannot be spoilt.
    """
    form = _form(reference)
    source = extract(response, reference)
    if source is None:
        return None
    if form == "tests" and parse(PRELUDE + source):  # `from __future__` must stay in front
        source = PRELUDE + source
    cases = _stdin_cases(reference, form)
    passed = _check_outputs(source, cases) if cases is not None else _check_asserts(source, _tests(reference, form))
    return passed if any(passed) else None


def same(a: list[bool], b: list[bool]) -> bool:
    """Whether two programs pass the same tests."""
    return list(a) == list(b)


def correct(found: list[bool] | None, reference: Any) -> bool:
    """Whether all tests pass."""
    return found is not None and all(found)


def extract(response: str, reference: Mapping[str, Any]) -> str | None:
    """The program that a response gives, ready to be tested; None if nothing in it is Python."""
    prompt, name = reference.get("prompt") or "", _entry_point(reference)
    blocks = list(_blocks(response))
    programs = [program for program in map(_head, blocks) if _does_something(parse(program))]
    for program in programs:
        if name is None:
            return program
        if _defines(parse(program), name):
            # the prompt brings imports and helpers; alone it is a function without a body, replaced by the block's
            return f"{prompt}\n{program}" if prompt and parse(f"{prompt}\n{program}") else program
    if not prompt:
        return programs[0] if programs else None
    for block in blocks:
        for text in (_head(prompt + block), _head(prompt + indent(block, "    "))):
            if _completes(parse(text), name):
                return text
    return None


def split_asserts(tests: str) -> tuple[str, int]:
    """The tests with every `assert` reporting for itself, so that the first that fails does not hide the others."""
    tree = parse(tests)
    if tree is None:
        raise ValueError(
            f"A code reference has tests that are not Python: {tests[:200]!r}. Correct them or leave it out."
        )
    split = _Split()
    return ast.unparse(ast.fix_missing_locations(split.visit(tree))), split.count


def parse(text: str) -> ast.Module | None:
    """The syntax tree of a text that compiles, else None."""
    found = _compile(text)
    return found if isinstance(found, ast.Module) else None


def same_output(found: str, expected: str) -> bool:
    """Whether two outputs are equal line by line: trailing space is nothing, and 1.0 is 1."""
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (found, expected))
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(map(_same_word, a, b)) for a, b in zip(ours, theirs, strict=True)
    )


class _Split(ast.NodeTransformer):
    """Turns `assert x` into: try it, and report its number with how it went; in a loop, when the loop has ended."""

    def __init__(self) -> None:
        self.count = 0
        self._in_loop = False

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Wrap one assert; `assert True` tests nothing."""
        if isinstance(node.test, ast.Constant):
            return node
        index, self.count = self.count, self.count + 1
        passed = f"__report__.so_far({index})" if self._in_loop else f"__report__({index}, True)"
        wrapped = ast.parse(f"try:\n    {passed}\nexcept BaseException:\n    __report__({index}, False)").body[0]
        assert isinstance(wrapped, ast.Try)
        wrapped.body.insert(0, node)
        return wrapped

    def visit_For(self, node: ast.For | ast.While) -> ast.stmt | list[ast.stmt]:
        """Report the end of an outermost loop: between its asserts the program may raise, hang or leave."""
        if self._in_loop:
            self.generic_visit(node)
            return node
        first, self._in_loop = self.count, True
        self.generic_visit(node)
        self._in_loop = False
        return [node, *ast.parse(f"__report__.loop_ended({first}, {self.count})").body] if self.count > first else node

    visit_While = visit_For


def _form(reference: Any) -> str:
    """Which of the forms a reference has."""
    found = [form for form in FORMS if isinstance(reference, Mapping) and form in reference]
    if len(found) != 1 or (found == ["test"] and "entry_point" not in reference):
        keys = sorted(reference) if isinstance(reference, Mapping) else type(reference).__name__
        raise ValueError(
            f"A code reference has {keys}; expected one of the keys {', '.join(FORMS)} ('test' with 'entry_point'), as "
            "hf_selfjudge.checkers.code describes."
        )
    return found[0]


def _stdin_cases(reference: Mapping[str, Any], form: str) -> Sequence[Mapping[str, str]] | None:
    """Inputs and outputs of a whole program; None where functions are tested."""
    if form == "tests":
        return None if reference.get("entry_point") else reference["tests"]
    return reference["stdin"] if form == "stdin" else None


def _tests(reference: Mapping[str, Any], form: str) -> str:
    """All tests as Python text made of asserts."""
    if form == "test":
        return f"{reference['test']}\n\ncheck({reference['entry_point']})\n"
    if form == "asserts":
        return "\n".join([reference.get("setup") or "", *reference["asserts"]])
    functional = reference["functional"] if form == "functional" else reference
    return "\n".join(
        f"assert __call__({functional['entry_point']!r}, {case['input']!r}) == __read__({case['output']!r})"
        for case in functional["tests"]
    )


def _check_asserts(source: str, tests: str) -> list[bool]:
    split, count = split_asserts(tests)
    word = secrets.token_hex(16)
    result = run(f"{HARNESS.read_text(encoding='utf-8')}\n\ncheck({word!r}, {source!r}, {split!r})\n", "", LIMITS)
    lines = re.findall(rf"^{word} (\d+) ([01])$", result.stdout, re.MULTILINE)
    passed, failed = ({int(index) for index, flag in lines if flag == wanted} for wanted in "10")
    return [index in passed and index not in failed for index in range(count)]


def _check_outputs(source: str, cases: Sequence[Mapping[str, str]]) -> list[bool]:
    results = run_many([(source, case["input"]) for case in cases], LIMITS)
    return [
        result.status == "ok" and same_output(result.stdout, case["output"])
        for result, case in zip(results, cases, strict=True)
    ]


def _same_word(a: str, b: str) -> bool:
    if a == b:
        return True
    try:
        return Decimal(a) == Decimal(b)
    except InvalidOperation:
        return False


def _blocks(response: str) -> Iterator[str]:
    """What may be the program, likeliest first: fenced blocks from the last one, then the text without its prose."""
    fenced = [found["text"] for found in _FENCE.finditer(response) if found["language"].lower() in PYTHON]
    for text in fenced[: -MOST_BLOCKS - 1 : -1]:
        yield dedent(text) if text[:1] in (" ", "\t") else text  # a block in a list is indented as a whole
    if not fenced:
        yield response
        start = _CODE_LINE.search(response)
        if start and start.start() > 0:
            yield response[start.start() :]


def _head(text: str) -> str:
    """The text up to where it stops being Python: prose behind the code, or a statement that was cut off."""
    for _ in range(MOST_CUTS):
        found = _compile(text)
        if isinstance(found, ast.Module) or found < 2:
            break
        text = "\n".join(text.split("\n")[: found - 1]).rstrip() + "\n"
    return text


def _compile(text: str) -> ast.Module | int:
    """The syntax tree, or the number of the line that is wrong (0 if Python does not say)."""
    # what Python warns about in a response is not our user's business
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<response>", "exec", dont_inherit=True)
            return ast.parse(text)
        except SyntaxError as error:
            return error.lineno or 0
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return 0


def _entry_point(reference: Mapping[str, Any]) -> str | None:
    """The function under test; for plain asserts the first one they call that is not Python's own."""
    if "asserts" not in reference:
        return reference.get("functional", reference).get("entry_point")
    tree = parse("\n".join(reference["asserts"])) or ast.Module([], [])
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return next((name for name in called if not hasattr(builtins, name)), None)


def _does_something(tree: ast.Module | None) -> bool:
    """Whether it is a program, not an output such as `3` that happens to be Python."""
    kinds = (ast.Call, ast.FunctionDef, ast.ClassDef, ast.Assign)
    return tree is not None and any(isinstance(node, kinds) for node in ast.walk(tree))


def _defines(tree: ast.Module | None, name: str) -> bool:
    """Whether a function or method of this name is written there."""
    functions = (
        [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)] if tree else []
    )
    return any(function.name == name for function in functions)


def _completes(tree: ast.Module | None, name: str | None) -> bool:
    """Whether the last function of this name has more than a docstring."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name] if tree else []
    return bool(found) and len(found[-1].body) > (ast.get_docstring(found[-1]) is not None)
