"""Documents: local files in every task's own columns, folds, and what is refused."""

import gzip
import json

import pytest
import yaml

from hf_selfjudge.lm_eval import EVAL_TASKS
from hf_selfjudge.lm_eval.data import load
from hf_selfjudge.lm_eval.response import FIGURES
from hf_selfjudge.pipeline.sources.language import load_presets

ROWS = {
    "gsm8k": {"question": "What is 3 + 4?", "answer": "3 + 4 = 7\n#### 7"},
    "math500": {"problem": "What is $1/2$?", "answer": "0.5", "solution": "-"},
    "mmlu": {"question": "Which is red?", "subject": "astronomy", "choices": ["Mars", "Earth"], "answer": 0},
    "cnn_dailymail": {"article": "A dog ran.", "highlights": "Dog runs ."},
    "humaneval": load_presets()["humaneval"].example,
    "livecodebench": load_presets()["livecodebench"].example,
}


class Loader(yaml.SafeLoader):
    """Reads a task without importing its functions."""


Loader.add_constructor("!function", lambda loader, node: node.value)
SOURCES = {
    path.stem: yaml.load(path.read_text(), Loader)["dataset_kwargs"]["source"] for path in EVAL_TASKS.glob("*/*.yaml")
}


def write(path, rows):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        file.writelines(json.dumps(dict(row)) + "\n" for row in rows)
    return str(path)


@pytest.mark.parametrize("task", sorted(SOURCES))
def test_every_task_loads_offline(task, tmp_path):
    source = SOURCES[task]
    if "playground" in source:
        docs = load(source, items=3)["test"]
        assert len(docs) == 3
        assert json.loads(docs[0]["reference"])["task"] == source["playground"]
        assert docs[0] == load(source, items=2, seed=0, pretrained="other things")["test"][0]
        assert docs[0] != load(source, items=1, seed=1)["test"][0]
        return
    row = ROWS[source["name"]]
    file = write(tmp_path / "rows.jsonl.gz", [row, row])
    docs = load(source, data_files={source["name"]: file}, version=1.0)["test"]
    assert len(docs) == 2
    words = next(value for value in row.values() if isinstance(value, str))
    assert words in docs[0]["prompt"]
    assert json.loads(docs[0]["reference"])


def test_columns_and_the_nli_model_are_in_the_document(tmp_path):
    mmlu = load(SOURCES["mmlu_cot"], data_files=write(tmp_path / "a.jsonl", [ROWS["mmlu"]]))["test"][0]
    assert json.loads(mmlu["reference"]) == {"answer": "A", "options": 2, "subject": "astronomy"}
    assert "A. Mars\nB. Earth" in mmlu["prompt"]
    file = write(tmp_path / "b.jsonl", [ROWS["cnn_dailymail"]])
    source = SOURCES["cnn_dailymail_fc"]
    assert load(source, data_files=file)["test"][0]["nli_model"] == "microsoft/deberta-large-mnli"
    assert load(source, data_files=file, nli_model="mine")["test"][0]["nli_model"] == "mine"


def test_four_folds_share_the_programs_out(tmp_path):
    rows = [{**ROWS["livecodebench"], "question_content": f"Print {n} squared."} for n in range(40)]
    file = write(tmp_path / "rows.jsonl", rows)
    source = SOURCES["livecodebench"]
    folds = [load(source, data_files=file, fold=fold)["test"]["prompt"] for fold in range(4)]
    assert sorted(prompt for fold in folds for prompt in fold) == sorted(
        load(source, data_files=file)["test"]["prompt"]
    )
    assert all(len(fold) > 3 for fold in folds)
    with pytest.raises(ValueError, match="folds 0 to 3"):
        load(source, data_files=file, fold=4)


def test_the_first_documents_are_of_all_subjects(tmp_path):
    rows = [{**ROWS["mmlu"], "subject": subject, "question": f"{n}?"} for subject in "abc" for n in range(10)]
    found = load(SOURCES["mmlu_cot"], data_files=write(tmp_path / "rows.jsonl", rows))["test"]["subject"]
    assert sorted(found) == sorted(row["subject"] for row in rows)
    assert all(set(found[first : first + 3]) == set("abc") for first in range(0, 30, 3))


@pytest.mark.parametrize("given", [{"items": 0}, {"items": "many"}, {"seed": -1}])
def test_counts_of_the_playground(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} is .* in --metadata, expected an int of at least"):
        load({"playground": "word_problems"}, **given)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        load(SOURCES["gsm8k"], data_files=str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="says no format"):
        load(SOURCES["gsm8k"], data_files=write(tmp_path / "rows.txt", [ROWS["gsm8k"]]))
    with pytest.raises(ValueError, match="question"):
        load(SOURCES["gsm8k"], data_files=write(tmp_path / "rows.jsonl", [{"q": 1}]))


def test_every_benchmark_runs_through_lm_eval(tmp_path):
    pytest.importorskip("lm_eval.api")
    from embedded_runs import PAIR, evaluate
    from nli_stand_in import save_stand_in

    files = {name: write(tmp_path / f"{name}.jsonl", [row, row]) for name, row in ROWS.items()}
    nli = save_stand_in(tmp_path / "nli", ["NEUTRAL", "ENTAILMENT", "CONTRADICTION"])
    scores = {
        "selfjudge_gsm8k": {"exact_match"},
        "selfjudge_gsm8k_8shot": {"exact_match"},
        "selfjudge_math500": {"exact_match"},
        "selfjudge_mmlu_cot": {"acc", "acc_astronomy"},
        "selfjudge_cnn_dailymail": {"fc", "fc_probability", "rouge1", "rouge2", "rougeL"},
        "selfjudge_cnn_dailymail_rouge": {"rouge1", "rouge2", "rougeL"},
        "selfjudge_humaneval": {"pass_at_1"},
        "selfjudge_livecodebench": {"pass_at_1"},
    }
    metadata = {"data_files": files, "nli_model": nli}
    options = {"gen_kwargs": "max_gen_toks=12", "limit": 1, "metadata": metadata, "tasks": list(scores)}
    with pytest.raises(ValueError, match="unsafe"):
        evaluate(PAIR, **options)
    found = evaluate(PAIR, **options, confirm_run_unsafe_code=True)["results"]
    for task, names in scores.items():
        reported = {key.removesuffix(",none") for key in found[task] if key.endswith(",none") and "stderr" not in key}
        assert reported == names | set(FIGURES)
