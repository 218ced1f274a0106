"""What can be wrong with sources: one clear message, before any work and also without the Hub."""

import json
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from prompting import ROWS, load, write_jsonl

from hf_selfjudge.pipeline.sources.language import load_presets


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
    path = tmp_path / "a.json"  # a list; lines of JSON need no library
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-selfjudge\[train\]'"):
        load(plain_tokenizer, path)
