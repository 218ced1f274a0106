"""Presets: each renders its example, names the references its checker reads, and takes a local file."""

import json
import subprocess
import sys

import pytest
from prompting import ROWS, load, texts, write_jsonl

from hf_selfjudge.pipeline.prompts import describe_presets
from hf_selfjudge.pipeline.sources import dataset_rows
from hf_selfjudge.pipeline.sources import language as sources
from hf_selfjudge.pipeline.sources.language import Source, load_presets, parse_source
from hf_selfjudge.pipeline.sources.mapping import compile_mapping

PRESET_TEXTS = {
    "gsm8k": "Tom has 3 boxes of 4 pens each. How many pens does he have?",
    "livecodebench": "Write a Python program that solves this problem.\n\nGiven an integer N, print N squared.\n\n"
    "Read the input from stdin and print the answer to stdout.\n\n"
    "Reply with the whole program in one Python code block.",
    "dolly": "In which year was the bridge opened?\n\nThe bridge was begun in 1901 and opened in 1907.",
    "alpaca": "Sort these words.\n\npear, apple, fig",
    "math500": "What is $\\frac{1}{2} + \\frac{1}{4}$?\n\nPut the final answer in \\boxed{}.",
    "humaneval": "Complete this Python function. Reply with the whole function in one Python code block.\n\n```python\n"
    'def double(n: int) -> int:\n    """Twice n."""\n```',
    "mmlu": "Which of these is a prime number?\n\nA. 4\nB. 6\nC. 7\nD. 9\n\n"
    'Think step by step, then finish with "The answer is (X)", where X is the letter of the right choice.',
}


@pytest.mark.parametrize("name", list(PRESET_TEXTS))
def test_every_preset_renders_its_example(name):
    preset = load_presets()[name]
    found = compile_mapping(Source(name, name, None, preset), list(preset.example))(preset.example)
    assert found.text == PRESET_TEXTS[name]
    assert found.checker == preset.checker


def test_every_preset_is_tested_and_described():
    assert list(load_presets()) == list(PRESET_TEXTS)
    description = describe_presets()
    assert all(
        any(line.split()[0] == name for line in description.splitlines()) for name in [*PRESET_TEXTS, "playground"]
    )


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("gsm8k", "3 times 4 is 12. The answer is 12."),
        ("math500", "So it is \\boxed{\\frac{3}{4}}."),
        ("mmlu", "Only 7 has no divisors. The answer is (C)"),
        ("humaneval", "```python\ndef double(n: int) -> int:\n    return 2 * n\n```"),
        ("livecodebench", "```python\nprint(int(input()) ** 2)\n```"),
    ],
)
def test_references_are_what_the_checkers_read(name, good):
    from hf_selfjudge.checkers import CHECKERS

    preset = load_presets()[name]
    found = compile_mapping(Source(name, name, None, preset), list(preset.example))(preset.example)
    checker = CHECKERS[found.checker]
    assert checker.correct(checker.outcome(good, found.reference), found.reference)
    assert not checker.correct(checker.outcome("I do not know.", found.reference), found.reference)


def test_functional_programs_of_livecodebench():
    preset = load_presets()["livecodebench"]
    row = {
        "question_content": "Add.",
        "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
        "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
        "private_test_cases": "never read",
        "metadata": '{"func_name": "add"}',
    }
    found = compile_mapping(Source("x", "x", None, preset), list(row))(row)
    assert found.reference == {
        "tests": [{"input": "1\n2", "output": "3", "testtype": "functional"}],
        "entry_point": "add",
    }
    assert (
        "Start from this code:\n\n```python\nclass Solution:\n    def add(self, a: int, b: int) -> int:" in found.text
    )
    assert "stdin" not in found.text


def test_a_preset_reads_a_local_file(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "train.jsonl", ROWS)
    found = load(tokenizer, f"gsm8k={path}:10")
    assert len(found.prompts) == 10
    for prompt in found.prompts:
        assert {"question": prompt.text, "answer": prompt.reference} in ROWS
        chat = [{"role": "user", "content": prompt.text}]
        rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert prompt.tokens == tokenizer(rendered, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(prompt.tokens).endswith("<|assistant|>")
        assert prompt.tokens.count(tokenizer.bos_token_id) == 1
        assert (prompt.source, prompt.checker) == ("gsm8k", "math")
    unchecked = load(tokenizer, f"gsm8k={path}?checker=none:10")
    assert {(prompt.checker, prompt.reference) for prompt in unchecked.prompts} == {(None, None)}


def test_optional_columns_may_be_missing(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "d.jsonl", [{"instruction": f"say {n} "} for n in range(3)])
    assert sorted(texts(load(tokenizer, f"dolly={path}"))) == ["say 0", "say 1", "say 2"]


def test_folds_share_nothing_and_miss_nothing(tmp_path):
    row = dict(load_presets()["livecodebench"].example)
    rows = [{**row, "question_content": f"Problem {n}"} for n in range(80)]
    path = write_jsonl(tmp_path / "lcb.jsonl", rows)

    def read(part):
        return {prompt.text for prompt in dataset_rows.read_prompts(parse_source(f"livecodebench@{part}={path}")[0], 0)}

    held = [read(f"held{fold}") for fold in range(4)]
    assert sum(map(len, held)) == len(set().union(*held)) == 80
    assert min(map(len, held)) > 8
    for fold in range(4):
        assert read(f"fold{fold}") == set().union(*held) - held[fold]


def test_a_preset_with_a_wrong_key_is_refused():
    with pytest.raises(ValueError, match="preset 'x' has the keys"):
        sources.Preset.from_dict("x", {"dataset": "a/b", "prompt": "q", "colour": "red"})


def test_the_presets_are_described_without_heavy_imports():
    code = (
        "import sys; from hf_selfjudge.pipeline.prompts import describe_presets; print(describe_presets());"
        "assert not {'torch', 'datasets', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
