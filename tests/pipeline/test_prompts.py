import csv
import gzip
import hashlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from datasets import Dataset
from tiny import build_tokenizer
from transformers import AutoTokenizer

from hf_selfjudge.pipeline.prompts import describe_presets, load_prompts
from hf_selfjudge.pipeline.records import SPLITS
from hf_selfjudge.pipeline.settings import PromptSettings
from hf_selfjudge.pipeline.sources import dataset_rows
from hf_selfjudge.pipeline.sources import language as sources
from hf_selfjudge.pipeline.sources.language import Source, load_presets, parse_source
from hf_selfjudge.pipeline.sources.mapping import compile_mapping
from hf_selfjudge.playground import ASSETS, world

ROWS = [{"question": f"what is {n} + {n}?", "answer": f"It is <<{n}+{n}={2 * n}>>\n#### {2 * n}"} for n in range(60)]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS / "target")


@pytest.fixture(scope="module")
def plain_tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def chat_tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_jsonl(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(tokenizer, *specs, context=None, max_new_tokens=16, **settings):
    return load_prompts(PromptSettings(prompts=tuple(map(str, specs)), **settings), tokenizer, context, max_new_tokens)


def texts(found):
    return [prompt.text for prompt in found.prompts]


# --- files ---------------------------------------------------------------------------------------------------------


def write_as(ending: str, folder: Path, rows) -> Path:
    path = folder / f"rows{ending}"
    if ending == ".jsonl":
        return write_jsonl(path, rows)
    if ending == ".jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif ending == ".json":
        path.write_text(json.dumps(rows, indent=1))
    elif ending == ".json.gz":
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    elif ending == ".parquet":
        Dataset.from_list(rows).to_parquet(path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        if ending == ".csv.gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet"])
def test_every_kind_of_file_gives_the_same_prompts_and_nothing_is_left_beside_it(
    ending, tmp_path, plain_tokenizer, monkeypatch
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "data"
    folder.mkdir()
    path = write_as(ending, folder, ROWS)
    found = load(plain_tokenizer, f"{path}?checker=math&reference=answer")
    assert sorted(texts(found)) == sorted(row["question"] for row in ROWS)
    answers = {row["question"]: row["answer"] for row in ROWS}
    assert all(prompt.reference == answers[prompt.text] and prompt.checker == "math" for prompt in found.prompts)
    assert {prompt.source for prompt in found.prompts} == {path.name}
    assert [prompt.prompt_id for prompt in found.prompts] == list(range(60))
    assert found.skipped == {}
    assert [file.name for file in folder.iterdir()] == [path.name]
    assert not (tmp_path / "cache").exists()


def test_a_csv_keeps_its_text_as_it_is_written(tmp_path, plain_tokenizer):
    path = tmp_path / "a [1]*.csv"  # a name that a loader could take for a pattern
    path.write_bytes('\ufeffprompt,answer\r\nfirst,007\r\nNA,1.50\r\n"a, b",\r\n'.encode())
    found = load(plain_tokenizer, f"{path}?reference=answer")
    assert {prompt.text: prompt.reference for prompt in found.prompts} == {"first": "007", "NA": "1.50", "a, b": ""}


def test_columns_are_guessed_in_order(tmp_path, plain_tokenizer):
    rows = [{"text": f"t{n}", "instruction": f"i{n}", "response": "x"} for n in range(3)]
    assert sorted(texts(load(plain_tokenizer, write_jsonl(tmp_path / "a.jsonl", rows)))) == ["i0", "i1", "i2"]
    rows = [{"title": "x", "body": f"{n}"} for n in range(3)]
    path = write_jsonl(tmp_path / "b.jsonl", rows)
    with pytest.raises(ValueError, match=r"looks like a prompt; expected one of prompt, .* found title, body"):
        load(plain_tokenizer, path)
    assert sorted(texts(load(plain_tokenizer, f"{path}?prompt=body"))) == ["0", "1", "2"]
    mapping = "prompt=T: {{ title }}%26{{ body }}&filter=body != '1'&reference=[body, 1]"
    mapped = load(plain_tokenizer, f"{path}?{mapping}:2", f"{tmp_path / 'a.jsonl'}:1")
    assert sorted((prompt.text, prompt.reference) for prompt in mapped.prompts[:2]) == [
        ("T: x&0", ["0", 1]),
        ("T: x&2", ["2", 1]),
    ]


def test_chats_are_used_up_to_the_users_last_message(tmp_path, chat_tokenizer, plain_tokenizer):
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
    own_system = {"role": "system", "content": "own"}
    chats = [
        [user, answer],
        [user, answer, {"role": "user", "content": "more", "name": "me"}, answer],
        [own_system, user],
        [answer],
    ]
    path = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat} for chat in chats])
    found = load(chat_tokenizer, path, system="sys")
    expected = {
        "hi": "<bos>[system]sys[user]hi[assistant]",
        "User: hi\n\nAssistant: yo\n\nUser: more": "<bos>[system]sys[user]hi[assistant]yo[user]more[assistant]",
        "System: own\n\nUser: hi": "<bos>[system]own[user]hi[assistant]",
    }
    ids = {text: chat_tokenizer(chat, add_special_tokens=False)["input_ids"] for text, chat in expected.items()}
    assert {prompt.text: prompt.tokens for prompt in found.prompts} == ids
    assert found.skipped == {"chats.jsonl: empty": 1}
    plain = {prompt.text: prompt.tokens for prompt in load(plain_tokenizer, path).prompts}
    assert plain["hi"] == plain_tokenizer("hi")["input_ids"]
    assert (
        plain["User: hi\n\nAssistant: yo\n\nUser: more"]
        == plain_tokenizer("User: hi\n\nAssistant: yo\n\nUser: more\n\nAssistant:")["input_ids"]
    )
    assert plain["System: own\n\nUser: hi"] == plain_tokenizer("own\n\nhi")["input_ids"]


# --- presets -------------------------------------------------------------------------------------------------------

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


# --- the playground ------------------------------------------------------------------------------------------------


def test_playground_prompts_are_spread_over_the_tasks(tokenizer):
    found = load(tokenizer, "playground:10", seed=3)
    counts = Counter(prompt.source for prompt in found.prompts)
    assert sorted(counts.values()) == [2, 2, 3, 3]
    assert set(counts) == {f"playground/{task}" for task in world.TASKS}
    for task in world.TASKS:
        items = world.generate(task, "train", 3, 3)
        ours = [prompt for prompt in found.prompts if prompt.source == f"playground/{task}"]
        assert [prompt.text for prompt in ours] == [item.prompt for item in items[: len(ours)]]
        for prompt, item in zip(ours, items, strict=False):
            if task == "open_ended":  # nothing can check these
                assert prompt.checker is prompt.reference is None
            else:
                assert prompt.checker == "playground"
                assert prompt.reference == json.loads(json.dumps({"task": task, "facts": item.facts}))


def test_one_task_and_skipped_prompts_are_replaced(tokenizer):
    whole = load(tokenizer, "playground/news:20")
    lengths = sorted(len(prompt.tokens) for prompt in whole.prompts)
    limit = lengths[15]
    found = load(tokenizer, "playground/news:20", max_prompt_tokens=limit)
    assert len(found.prompts) == 20
    assert found.skipped[f"playground/news: longer than {limit} tokens"] >= sum(length > limit for length in lengths)
    assert {p.text for p in found.prompts} >= {p.text for p in whole.prompts if len(p.tokens) <= limit}


# --- choice, duplicates and length ---------------------------------------------------------------------------------


def test_a_larger_count_only_adds_prompts(tmp_path, plain_tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    small, large, whole = (texts(load(plain_tokenizer, f"{path}{count}", seed=1)) for count in (":7", ":30", ""))
    assert small == large[:7]
    assert large == whole[:30]
    assert texts(load(plain_tokenizer, f"{path}:7", seed=2)) != small
    shuffled = write_jsonl(tmp_path / "b.jsonl", ROWS[::-1])
    assert texts(load(plain_tokenizer, f"{shuffled}:7", seed=1)) == small
    assert small == sorted(
        (row["question"] for row in ROWS), key=lambda text: hashlib.sha256(f"choice\0{1}\0{text}".encode()).digest()[:8]
    )[:7]  # fmt: skip


def test_duplicates_empty_and_long_prompts_are_counted(tmp_path, plain_tokenizer):
    long = "one two three four " * 20
    rows = [{"prompt": text} for text in ["a b", "a  b ", "", "  ", "c", "d", long, None]]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    other = write_jsonl(tmp_path / "b.jsonl", [{"prompt": text} for text in ["c", "e"]])
    assert len(plain_tokenizer(long)["input_ids"]) > 20
    found = load(plain_tokenizer, path, other, context=36, max_new_tokens=16)
    assert sorted(" ".join(text.split()) for text in texts(found)) == ["a b", "c", "d", "e"]
    assert found.skipped == {
        "a.jsonl: duplicate": 1,
        "a.jsonl: empty": 3,
        "a.jsonl: longer than 20 tokens": 1,
        "b.jsonl: duplicate": 1,
    }
    with pytest.raises(
        ValueError, match=r"4 prompts were asked for, 3 of 8 can be used.*1 longer than 20 tokens.*at most 3"
    ):
        load(plain_tokenizer, f"{path}:4", context=36)
    assert "long" not in str(load(plain_tokenizer, path).skipped)


@pytest.mark.parametrize(("largest", "context", "limit"), [(5, None, 5), (5, 12, 2), (1, 12, 1), (None, 12, 2)])
def test_the_limit_is_the_smaller_one(largest, context, limit, tmp_path, plain_tokenizer):
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"prompt": "x" * n} for n in range(1, 9)] + [{"prompt": t} for t in "yzw"]
    )
    found = load(plain_tokenizer, path, context=context, max_new_tokens=10, max_prompt_tokens=largest)
    kept = [n for n in range(1, 9) if len(plain_tokenizer("x" * n)["input_ids"]) <= limit]
    assert sorted(texts(found)) == sorted(["x" * n for n in kept] + ["y", "z", "w"])
    assert found.skipped == {f"a.jsonl: longer than {limit} tokens": 8 - len(kept)}


# --- splits --------------------------------------------------------------------------------------------------------


def test_splits_are_fixed_by_seed_and_words(tmp_path, plain_tokenizer):
    rows = [{"prompt": f"say {n}"} for n in range(600)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    found = load(plain_tokenizer, path, validation=0.3, calibration=0.1)
    splits = {prompt.text: prompt.split for prompt in found.prompts}
    for text, split in splits.items():  # the definition, computed anew
        draw = int.from_bytes(hashlib.sha256(f"split\0{0}\0{text}".encode()).digest()[:8], "big") / 2**64
        assert split == ("validation" if draw < 0.3 else "calibration" if draw < 0.4 else "train")
    counts = Counter(splits.values())
    assert abs(counts["validation"] - 180) < 45
    assert abs(counts["calibration"] - 60) < 30
    fewer = load(plain_tokenizer, f"{path}:200", validation=0.3, calibration=0.1)
    assert all(splits[prompt.text] == prompt.split for prompt in fewer.prompts)
    other = load(plain_tokenizer, path, validation=0.3, calibration=0.1, seed=1)
    assert any(splits[prompt.text] != prompt.split for prompt in other.prompts)


def test_no_split_is_empty(tmp_path, plain_tokenizer):
    paths = [write_jsonl(tmp_path / f"{n}.jsonl", [{"prompt": f"{n} {k}"} for k in range(n)]) for n in range(1, 8)]
    for seed in range(6):
        found = load(plain_tokenizer, *paths, validation=0.02, calibration=0.02, seed=seed)
        by_source = defaultdict(set)
        for prompt in found.prompts:
            by_source[prompt.source].add(prompt.split)
        assert all(by_source[f"{n}.jsonl"] == set(SPLITS) for n in range(3, 8))
        pair = load(plain_tokenizer, *paths[:2], seed=seed)  # 1 and 2 prompts: only together enough
        assert sorted(prompt.split for prompt in pair.prompts) == sorted(SPLITS)
    with pytest.raises(ValueError, match="2 prompts can be used, expected at least 3"):
        load(plain_tokenizer, paths[1])


# --- tokenizers ----------------------------------------------------------------------------------------------------


def test_plain_text_without_a_chat_template(tmp_path, caplog):
    from tokenizers.processors import TemplateProcessing

    tokenizer = build_tokenizer()
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": text} for text in ["one", "two", "<bos>three"]])
    inner = {text: tokenizer(text)["input_ids"] for text in ["one", "two", "<bos>three"]}
    # a tokenizer that opens and closes every text
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    assert tokenizer("one")["input_ids"] == [1, *inner["one"], 2]
    found = load(tokenizer, path)
    assert "no chat template" in caplog.text
    assert {prompt.text: prompt.tokens for prompt in found.prompts} == {
        "one": [1, *inner["one"]],
        "two": [1, *inner["two"]],
        "<bos>three": inner["<bos>three"],
    }
    with_system = load(tokenizer, path, system="sys")
    expected = tokenizer("sys\n\none", add_special_tokens=False)["input_ids"]
    assert [1, *expected] in [prompt.tokens for prompt in with_system.prompts]


def test_a_template_that_refuses_a_role_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"refuses a chat of system, user: .*Leave out the system message"):
        load(tokenizer, "playground:4", system="be brief")


# --- what can be wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gsm8:10", r"no preset 'gsm8'; did you mean 'gsm8k'\? presets are gsm8k, livecodebench, .*playground"),
        ("gms8k=rows.jsonl", r"no preset 'gms8k'; did you mean 'gsm8k'"),
        ("gsm8k:ten", "COUNT is 'ten', expected a whole number"),
        ("gsm8k:0", "COUNT is '0'"),
        ("gsm8k:-3", "COUNT is '-3'"),
        ("gsm8k:", "COUNT is ''"),
        ("gsm8k:1.5", "COUNT is '1.5'"),
        ("gsm8k@fold0", "gsm8k is not divided into folds"),
        ("livecodebench@fold4", "no fold 4; livecodebench has the folds 0 to 3"),
        ("rows.jsonl?promt=question", "'promt=question' is no part of a mapping, expected .* prompt, checker"),
        ("rows.jsonl?split=test", "split is for Hub datasets"),
        ("rows.jsonl?checker=maths", r"no checker 'maths'; did you mean 'math'\? expected one of .*choice"),
        ("rows.jsonl?prompt=problem", r"no column 'problem' in rows.jsonl; found question, answer"),
        ("rows.jsonl?reference=solution", r"no column 'solution' in rows.jsonl; found question, answer"),
        ("rows.jsonl?prompt={{ problem }}", r"no column 'problem'"),
        ("rows.jsonl?prompt={{ question", "is neither a column nor Jinja"),
        ("rows.jsonl?prompt={{ question.__class__.__mro__ }}", "a row does not fit the mapping"),
        ("humaneval=rows.jsonl", r"no column 'prompt' in rows.jsonl; found question, answer"),
        ("rows.jsonl:99", "99 prompts were asked for, 60 of 60 can be used; ask for at most 60"),
        ("rows.txt", "rows.txt has no ending that is understood; expected .jsonl"),
        ("bad.jsonl", "bad.jsonl cannot be read as json: .*expected rows"),
        ("bad.parquet", "bad.parquet cannot be read as parquet"),
        ("bad.jsonl.gz", "bad.jsonl.gz cannot be read as json"),
        ("bad.csv.gz", "bad.csv.gz cannot be read as csv"),
        ("latin.csv", "latin.csv cannot be read as csv: .*utf-8"),
        ("empty.jsonl", "there are no rows in empty.jsonl"),
        ("empty.csv", "there are no rows in empty.csv|cannot be read as csv"),
        ("lists.jsonl?prompt=turns", r"the prompt is a list, .* as in prompt=\{\{ turns\[0\] \}\}"),
        ("mmlu=letters.jsonl", "a row does not fit the mapping: .* 'B'"),
        ("rows.jsonl?filter=question == 'none'", "none of 0 prompts can be used"),
        ("playground", "needs a COUNT, as in playground:400"),
        ("playground/new:5", r"no playground task 'new'; did you mean 'news'\?"),
        ("playground?prompt=x:5", "takes no mapping"),
        ("", "no preset ''"),
    ],
)  # fmt: skip
def test_one_clear_error(spec, message, tmp_path, plain_tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    write_jsonl(tmp_path / "lists.jsonl", [{"turns": ["a", "b"]}])
    write_jsonl(tmp_path / "letters.jsonl", [{"question": "which?", "choices": ["x", "y"], "answer": "B"}])
    Path("rows.txt").write_text("hello")
    Path("bad.jsonl").write_text('{"prompt": "a"}\nnot json\n')
    Path("bad.parquet").write_text("not parquet")
    Path("bad.jsonl.gz").write_text("not gzip")
    Path("bad.csv.gz").write_text("not gzip")
    Path("latin.csv").write_bytes("prompt\ncafé\n".encode("latin-1"))
    Path("empty.jsonl").write_text("")
    Path("empty.csv").write_text("")
    with pytest.raises(ValueError, match=message) as caught:
        load(plain_tokenizer, spec)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("spec", ["none.jsonl:5", "gsm8k=none.jsonl", "./none", "~/none.csv.gz", "folder.json"])
def test_missing_files(spec, tmp_path, plain_tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    with pytest.raises(FileNotFoundError, match=r"none.* does not exist; expected a file|folder.json is a folder"):
        load(plain_tokenizer, spec)


def test_errors_about_the_whole_call(tmp_path, plain_tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"No prompts were given(.|\n)*gsm8k"):
        load(plain_tokenizer)
    with pytest.raises(ValueError, match="given twice"):
        load(plain_tokenizer, path, path)
    with pytest.raises(ValueError, match="max_new_tokens is 16, expected less than the target's context of 16"):
        load(plain_tokenizer, path, context=16)
    with pytest.raises(ValueError, match="none of 60 prompts can be used, 60 longer than 2 tokens"):
        load(plain_tokenizer, path, context=18)


def test_a_colon_or_equals_sign_in_a_path(tmp_path, plain_tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run:1").mkdir()
    write_jsonl(Path("run:1/a=b.jsonl"), ROWS)
    assert len(load(plain_tokenizer, "run:1/a=b.jsonl").prompts) == 60
    assert len(load(plain_tokenizer, "run:1/a=b.jsonl:5").prompts) == 5
    write_jsonl(Path("run:2.jsonl"), ROWS)
    assert len(load(plain_tokenizer, "run:2.jsonl").prompts) == 60


@pytest.mark.parametrize(
    ("spec", "way_out"),
    [
        ("gsm8k:10", "gsm8k=FILE"),
        ("livecodebench@fold0:5", "livecodebench@fold0=FILE"),
        ("org/name:5", "FILE?prompt=COLUMN"),
        ("org/name?prompt=question", "FILE?prompt=COLUMN"),
    ],
)
def test_without_the_hub_one_message_says_the_way_out(spec, way_out, tokenizer, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        load(tokenizer, spec)
    message = str(caught.value)
    assert message.startswith(f"{spec}: the Hub dataset ")
    assert message.endswith(f"{way_out}.")
    assert "\n" not in message
    assert caught.value.__suppress_context__


def test_hub_datasets_are_asked_for_by_config_split_and_revision(tokenizer, monkeypatch):
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return Dataset.from_list(ROWS)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    load(tokenizer, "gsm8k:5")
    found = load(
        tokenizer, "org/name?config=main&split=test&revision=v1&prompt=question&checker=math&reference=answer:5"
    )
    assert asked == [
        (("openai/gsm8k", "main"), {"split": "train", "revision": None}),
        (("org/name", "main"), {"split": "test", "revision": "v1"}),
    ]
    assert {(prompt.source, prompt.checker) for prompt in found.prompts} == {("org/name", "math")}


def test_the_files_of_a_preset_are_downloaded(tokenizer, monkeypatch, tmp_path):
    preset = load_presets()["livecodebench"]
    for number, name in enumerate(preset.files):
        write_jsonl(tmp_path / name, [{**preset.example, "question_content": f"Problem {number}"}])
    asked = []

    def download(repo, name, **options):
        asked.append((repo, name, options["repo_type"]))
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert len(load(tokenizer, "livecodebench").prompts) == len(preset.files)
    assert asked == [(preset.dataset, name, "dataset") for name in preset.files]


def test_a_missing_library_is_named_with_its_extra(tmp_path, plain_tokenizer, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-selfjudge\[train\]'"):
        load(plain_tokenizer, path)


def test_a_preset_with_a_wrong_key_is_refused():
    with pytest.raises(ValueError, match="preset 'x' has the keys"):
        sources.Preset.from_dict("x", {"dataset": "a/b", "prompt": "q", "colour": "red"})


def test_the_presets_are_described_without_heavy_imports():
    code = (
        "import sys; from hf_selfjudge.pipeline.prompts import describe_presets; print(describe_presets());"
        "assert not {'torch', 'datasets', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
