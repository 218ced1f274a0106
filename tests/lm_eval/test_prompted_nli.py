"""A chat model asked about summaries: its answer against a forward of each prompt alone; and the check of a measure."""

import json
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_selfjudge.cli import main
from hf_selfjudge.lm_eval import factual_consistency as consistency_module
from hf_selfjudge.lm_eval import fc_check, prompted_nli
from hf_selfjudge.lm_eval.factual_consistency import Consistency, consistencies
from hf_selfjudge.lm_eval.fc_check import auc, check, names, numbers, read_rows, replace_one
from hf_selfjudge.lm_eval.prompted_nli import QUESTION, answer_tokens, batches, support
from hf_selfjudge.playground import ASSETS

FOLDER = str(ASSETS / "target")
ASKED = [
    ("The mayor of Leeds opened a bridge.", "A bridge was opened."),
    ("Rain fell.", "Snow fell in May. It was cold."),
    ("A long article. " * 12, "Short."),
    ("Rain fell.", "Rain."),
]


def test_support_is_the_share_of_yes_in_the_first_token(monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    yes, no = answer_tokens(tokenizer)
    assert yes
    assert no
    assert not {*yes} & {*no}
    expected = []
    for article, text in ASKED:
        chat = [{"role": "user", "content": QUESTION.format(article=article, text=text)}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            chances = model(**ids).logits[0, -1].softmax(-1)
        expected.append(float(chances[yes].sum() / (chances[yes].sum() + chances[no].sum())))
    assert support(ASKED, FOLDER) == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr(prompted_nli, "TOKENS", 1)  # one prompt at a time
    assert support(ASKED, FOLDER) == pytest.approx(expected, abs=1e-5)
    assert support([], FOLDER) == []


def test_a_long_article_loses_its_end_and_the_question_stays(monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    monkeypatch.setattr(prompted_nli, "LONGEST", 120)
    ids = prompted_nli._prompt(tokenizer, "Rain fell in Leeds. " * 100, "It rained.")
    assert 80 < len(ids) <= 120
    text = tokenizer.decode(ids)
    assert "It rained." in text
    assert "Rain fell" in text


def test_batches_hold_so_many_tokens(monkeypatch):
    monkeypatch.setattr(prompted_nli, "TOKENS", 100)
    lengths = [10, 50, 49, 300, 30, 10, 10]
    found = batches(lengths)
    assert sorted(at for batch in found for at in batch) == list(range(7))
    assert found[0] == [3]  # alone, however long
    assert all(len(batch) * max(lengths[at] for at in batch) <= 100 for batch in found[1:])
    assert len(found) == 4


def test_whole_summaries_or_sentences_are_asked_about(monkeypatch):
    asked = []

    def answer(pairs, folder):
        asked.append((folder, [text for _, text in pairs]))
        return [0.9 if "true" in text else 0.2 for _, text in pairs]

    monkeypatch.setattr(prompted_nli, "support", answer)
    summaries = [("a", "This is true. This is false."), ("b", "..."), ("c", "All true.")]
    whole, parts = (consistencies(summaries, f"{kind}:F") for kind in ("prompt", "prompt-sentences"))
    assert asked == [
        ("F", ["This is true. This is false.", "All true."]),
        ("F", ["This is true.", "This is false.", "All true."]),
    ]
    assert [(one.by_class, one.sentences) for one in whole] == [(1.0, 1), (0.0, 0), (1.0, 1)]
    assert [one.by_class for one in parts] == [0.0, 0.0, 1.0]
    assert [one.by_probability for one in parts] == pytest.approx([0.1, 0.0, 0.8])


def test_a_model_that_cannot_be_asked_is_refused(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no chat template"):
        support(ASKED, str(tmp_path))


# -- the check --------------------------------------------------------------------------------------------------------

ROWS = [
    (f"Mayor Anna Bell of Leeds paid {n}00 pounds on Monday. Then Tom Reed of York left with {n}5 men.",
     f"Anna Bell of Leeds paid {n}00 pounds .")
    for n in range(1, 9)
]  # fmt: skip


def test_one_number_or_name_is_replaced_by_another_of_its_kind():
    found = [replace_one(ROWS, at, 0) for at in range(len(ROWS))]
    assert found == [replace_one(ROWS, at, 0) for at in range(len(ROWS))]
    assert found != [replace_one(ROWS, at, 1) for at in range(len(ROWS))]
    kinds = Counter()
    for (article, highlights), text in zip(ROWS, found, strict=True):
        old, new = (Counter(one.split()) for one in (highlights, text))
        gone, come = " ".join(old - new), " ".join(new - old)
        assert gone
        assert come
        assert come in article  # its own article has others
        kinds[gone[0].isdigit()] += 1
        assert gone[0].isdigit() == come[0].isdigit()
    assert set(kinds) == {True, False}
    assert replace_one([("nothing here.", "nothing .")], 0, 0) is None
    assert replace_one([("He paid 5 pounds.", "He paid 5 ."), ("She had 70 cats.", "")], 0, 0) == "He paid 70 ."


def test_numbers_and_names():
    text = "The 1,200 men of New York met Bob on Friday. Later, in 3.5 hours, Police came."
    assert [found[0] for found in numbers(text)] == ["1,200", "3.5"]
    assert [found[0] for found in names(text)] == ["New York", "Bob", "Police"]


def test_auc_by_hand():
    assert auc([3, 4], [1, 2]) == 1.0
    assert auc([1, 2], [3, 4]) == 0.0
    assert auc([1, 3], [2, 1]) == (0.5 + 0 + 1 + 1) / 4


def test_a_measure_that_sees_only_topics_is_found_out(monkeypatch):
    def by_number(pairs, model):
        """Sees whose highlights they are by a number, and no other change."""
        return [Consistency(0, 1.0 if text.split()[-3][0] == article.split("paid ")[1][0] else -1.0, 1)
                for article, text in pairs]  # fmt: skip

    monkeypatch.setattr(fc_check, "consistencies", by_number)
    rows = [(article, f"{text} for {n} years .") for n, (article, text) in enumerate(ROWS, 1)]
    found = check(rows, "mine")
    assert found["other_article"]["auc"] == found["other_article"]["low"] == found["other_article"]["paired"] == 1.0
    assert 0.5 <= found["one_replaced"]["auc"] < 0.8
    assert found["real"] == {"items": 8, "mean": 1.0, "supported": 1.0}
    assert found["one_replaced"]["low"] <= found["one_replaced"]["auc"] <= found["one_replaced"]["high"]
    assert {**check(rows, "mine"), "seconds": 0} == {**found, "seconds": 0}


def test_the_command_reads_a_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"article": a, "highlights": h}) + "\n" for a, h in ROWS))
    monkeypatch.setattr(consistency_module, "_classify", lambda asked, model: [(1.0, 0.5)] * len(asked))
    main(["fc-check", "--nli-model", "mine", "--rows", str(file), "--count", "5"])
    lines = capsys.readouterr().out.splitlines()
    assert "AUC 0.500 [0.500, 0.500]" in lines[1]
    assert json.loads(lines[-1])["rows"] == 5
    assert sorted(read_rows(str(file), None, 3)) == sorted(ROWS)
    with pytest.raises(ValueError, match="8 rows, expected at least 9"):
        read_rows(str(file), 9, 0)
