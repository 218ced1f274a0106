import csv
import gzip
import hashlib
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from datasets import Dataset
from prompting import ROWS, load, texts, write_jsonl
from tiny import build_tokenizer

from hf_selfjudge.pipeline.records import SPLITS
from hf_selfjudge.playground import world

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
