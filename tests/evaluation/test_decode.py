"""Batches of a comparison: what shares one, what takes a free place, and what happens where one does not fit."""

from types import SimpleNamespace

import pytest
import torch

from hf_selfjudge.evaluation.decode import decode
from hf_selfjudge.playground.world import generate
from hf_selfjudge.rules import Rule, parse_rule


def test_answers_that_are_likely_to_be_long_share_a_batch(embedded, monkeypatch):
    prompts = [[5] * length for length in (9, 30, 8, 31, 12, 17)]
    batches = []

    def pad(tokens, **kwargs):
        batches.append([len(ids) for ids in tokens["input_ids"]])
        return embedded[2].pad(tokens, **kwargs)

    tokenizer = SimpleNamespace(pad=pad, batch_decode=embedded[2].batch_decode)
    pair = (embedded[0], embedded[1], tokenizer)
    options = {"gamma": 2, "max_new_tokens": 2, "batch_size": 2}
    plain = decode(pair, prompts, parse_rule("exact"), **options)
    assert batches == [[31, 30], [17, 12], [9, 8]]
    batches.clear()
    alike = decode(pair, prompts, parse_rule("exact"), expected=[50, 10, 20, 60, 70, 90], **options)
    assert batches == [[17, 31], [30, 12], [9, 8]], "within a factor of two by answers, else by prompts"
    assert alike.texts == plain.texts


@pytest.mark.parametrize("spec", ["exact", "topk:3"])
def test_answers_that_are_done_make_room_for_others(embedded, spec, monkeypatch):
    calls = []
    original = embedded[0].generate
    monkeypatch.setattr(embedded[0], "generate", lambda **kwargs: calls.append(kwargs) or original(**kwargs))
    prompts = [embedded[2](item.prompt)["input_ids"] for item in generate("word_problems", "test", 9, 3)]
    prompts += [[7] * 5, [8] * 6]
    options = {"gamma": 3, "max_new_tokens": 40, "batch_size": 4}
    expected = decode(embedded, prompts, parse_rule(spec), **options)
    assert len(calls) == 3
    calls.clear()
    advanced = []
    found = decode(embedded, prompts, parse_rule(spec), **options, refill=True, advance=advanced.append)
    assert found.texts == expected.texts
    for name in ("cycles", "new_tokens", "drafted", "accepted", "judged_in"):
        assert getattr(found, name) == getattr(expected, name)
    assert [len(call["input_ids"]) for call in calls] == advanced
    assert sum(advanced) == 11
    assert advanced[-1] == 2, "much shorter prompts are a call of their own"
    assert max(call.get("judge_rows_at_once", 0) for call in calls) == 4


class Hungry(Rule):
    """Needs more memory than there is for more than two rows."""

    def __init__(self, rows):
        self.rows, self.seen = rows, []

    def accept(self, block):
        self.seen.append(len(block.draft_tokens))
        if len(block.draft_tokens) > self.rows:
            raise torch.OutOfMemoryError("not enough")
        return torch.zeros_like(block.draft_tokens, dtype=torch.bool)


def test_a_batch_whose_static_caches_do_not_fit_is_split(embedded, monkeypatch):
    prompts = [[5 + length] * length for length in range(8, 15)]
    options = {"gamma": 2, "max_new_tokens": 4, "batch_size": 5}
    expected = decode(embedded, prompts, parse_rule("exact"), **options)
    asked = []

    def crowded(models, rows, length):
        asked.append((rows, length))
        return "too large" if rows > 2 else None

    monkeypatch.setattr("hf_selfjudge.evaluation.decode.why_too_large", crowded)
    advanced = []
    found = decode(embedded, prompts, parse_rule("exact"), **options, advance=advanced.append)
    assert (found.texts, found.cycles) == (expected.texts, expected.cycles)
    assert advanced == [2, 1, 2, 2]
    assert asked[:3] == [(5, 24), (3, 24), (2, 24)]
    asked.clear()
    again = decode(embedded, prompts, parse_rule("exact"), **options, refill=True)
    assert (again.texts, again.cycles) == (expected.texts, expected.cycles)
    assert [rows for rows, _ in asked] == [5, 3, 2]
    monkeypatch.setattr("hf_selfjudge.evaluation.decode.why_too_large", lambda *needs: None)
    for most in (2, 0):  # another process takes the memory between the look and the call
        monkeypatch.setattr(
            "hf_selfjudge.engine.forward.why_too_large",
            lambda models, rows, length, most=most: "too large" if rows > most else None,
        )
        again = decode(embedded, prompts, parse_rule("exact"), **options, refill=True)
        assert (again.texts, again.cycles) == (expected.texts, expected.cycles)
    monkeypatch.setattr("hf_selfjudge.evaluation.decode.why_too_large", crowded)
    monkeypatch.setattr("hf_selfjudge.evaluation.decode.why_not_static", lambda model: "its attention is special")
    advanced.clear()
    decode(embedded, prompts, parse_rule("exact"), **options, advance=advanced.append)
    assert advanced == [5, 2], "models without static caches gain nothing"


def test_a_batch_that_does_not_fit_is_split(embedded, caplog):
    prompts = [[5 + length] * length for length in range(8, 15)]
    options = {"gamma": 2, "max_new_tokens": 4, "batch_size": 5}
    expected = decode(embedded, prompts, parse_rule("exact"), **options)
    rule, advanced, begun = Hungry(2), [], []
    found = decode(embedded, prompts, rule, **options, advance=advanced.append, begin=begun.append)
    assert (found.texts, found.new_tokens, found.cycles) == (expected.texts, expected.new_tokens, expected.cycles)
    assert sum(advanced) == 7
    assert max(advanced) == 2
    assert rule.seen[:2] == [5, 3]
    assert [*map(len, begun)] == [5, 3, 2, 1, 2, 2]
    assert begun[1] == begun[0][:3], "what was not answered comes again"
    assert "5 answers do not fit into memory together: decoding 3 at once" in caplog.text
    for rows, calls in ((2, [7]), (1, [1] * 7)):
        advanced.clear()
        again = decode(embedded, prompts, Hungry(rows), **options, refill=True, advance=advanced.append)
        assert (again.texts, again.cycles) == (expected.texts, expected.cycles)
        assert advanced == calls
    with pytest.raises(torch.OutOfMemoryError):
        decode(embedded, prompts, Hungry(0), **options)
