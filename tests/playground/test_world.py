"""The world of tasks: seeds, splits, checkers and variation of wording."""

import json
import random
import re
from itertools import pairwise

import pytest

from hf_selfjudge.playground import multiple_choice, news, word_problems, world
from hf_selfjudge.playground.news_events import DAYS
from hf_selfjudge.playground.wording import FIDELITY, NAMES, TOWNS, Template, Voice
from hf_selfjudge.playground.world import TASKS, Item, generate, score, split_of, stream

ALL_TASKS = tuple(TASKS)
SCORED = tuple(name for name in ALL_TASKS if name != "open_ended")


class CountingVoice(Voice):
    """Counts the choices that it makes, by kind."""

    __slots__ = ("counts",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = {"free": 0, "styled": 0, "as_the_table_says": 0}

    def free(self, variants):
        self.counts["free"] += len(variants) > 1
        return super().free(variants)

    def styled(self, slot, variants, step=0):
        chosen = super().styled(slot, variants, step)
        self.counts["styled"] += 1
        self.counts["as_the_table_says"] += chosen is variants[self.preferred(slot, len(variants), step)]
        return chosen


@pytest.mark.parametrize("task", ALL_TASKS)
def test_items_depend_on_the_seed_alone(task):
    random.seed(1)
    first = generate(task, "test", 30)
    random.seed(2)
    assert generate(task, "test", 30) == first
    assert generate(task, "test", 10) == first[:10]
    assert generate(task, "test", 30, seed=1) != first


@pytest.mark.parametrize("task", ALL_TASKS)
def test_splits_share_no_item(task):
    keys = {
        split: {TASKS[task].key(i.facts) for i in generate(task, split, 300, seed=3)} for split in ("train", "test")
    }
    assert len(keys["test"]) == len(keys["train"]) == 300
    assert not keys["train"] & keys["test"]
    for item in generate(task, "test", 50, seed=4):
        assert split_of(task, item.facts) == "test"


@pytest.mark.parametrize("task", ALL_TASKS)
def test_training_stream_never_shows_a_test_prompt(task):
    held_out = {item.prompt for item in generate(task, "test", 300)}
    seen = stream(task, "train")
    assert not any(next(seen)[1] in held_out for _ in range(3000))


def test_ids_are_unique_and_facts_are_json():
    items = [item for task in ALL_TASKS for item in generate(task, "train", 20)]
    assert len({item.id for item in items}) == len(items)
    for item in items:
        assert json.loads(json.dumps(item.facts)) == item.facts


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no task 'chess'"):
        generate("chess", "test", 1)
    with pytest.raises(ValueError, match="no split 'dev'"):
        generate("news", "dev", 1)
    with pytest.raises(ValueError, match="no split"):
        Item("news", "dev", 0, "", "", {})


def test_an_exhausted_split_is_reported(monkeypatch):
    monkeypatch.setattr(world, "PATIENCE", 300)
    with pytest.raises(ValueError, match="different items"):
        generate("open_ended", "test", 100_000)


@pytest.mark.parametrize("task", SCORED)
def test_reference_answers_score_one(task):
    assert {score(item, item.response) for item in generate(task, "train", 1000, seed=5)} == {1.0}


def test_open_ended_has_no_score():
    item = generate("open_ended", "test", 1)[0]
    assert score(item, item.response) is None


@pytest.mark.parametrize("task", SCORED)
def test_empty_and_foreign_answers_score_zero(task):
    items = generate(task, "test", 40)
    assert {score(item, "") for item in items} == {0.0}
    shifted = [score(a, b.response) for a, b in pairwise(items)]
    assert sum(shifted) / len(shifted) < 0.45


def test_word_problem_checker():
    facts = {"answer": 1200}
    for good in (
        "So the answer is 1200.",
        "Answer: 1,200.",
        "First, 2 + 2 = 4. The final answer is 1,200 coins",
        "1200",
    ):
        assert word_problems.score(facts, good) == 1.0
    for bad in ("The answer is 1201.", "Answer: 120.", "The answer is 1,200. Answer: 5.", "no number", "12000"):
        assert word_problems.score(facts, bad) == 0.0


def test_word_problems_calculate_right():
    for item in generate("word_problems", "train", 300):
        formulas = re.findall(r"(\d+) ([-+*/x]) (\d+) (?:=|is|makes) ([\d,]+)", item.response)
        for a, operator, b, c in formulas:
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "x": int(a) * int(b)}
            value["/"] = int(a) // int(b)
            assert value[operator] == int(c.replace(",", ""))
            assert operator != "/" or int(a) % int(b) == 0
    steps = [
        sum(len(word_problems.steps_of(e, 99)) for e in i.facts["events"])
        for i in generate("word_problems", "train", 300)
    ]
    assert set(steps) == {2, 3, 4, 5}


def test_multiple_choice_checker():
    facts = {"answer": "B"}
    for good in ("So the answer is (B).", "Not (A). Answer: (B).", "the answer is B", "Option b"):
        assert multiple_choice.score(facts, good) == 1.0
    for bad in ("So the answer is (C).", "(B) looks fine, but the answer is (A).", "Bananas", "The answer is (b"):
        assert multiple_choice.score(facts, bad) == 0.0


def test_multiple_choice_has_one_right_option():
    for item in generate("multiple_choice", "test", 200):
        options = item.facts["options"]
        assert len(set(options)) == 4
        right = multiple_choice.RELATIONS[item.facts["relation"]].lookup[item.facts["subject"]]
        assert options["ABCD".index(item.facts["answer"])] == right


NEWS = {
    "event": "vote",
    "place": "Northmere",
    "day": "Tuesday",
    "person": "Silva",
    "first": 1200,
    "second": 31,
    "outcome": "approved",
}


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("On Tuesday, the council of Northmere backed a plan for 1,200 homes. It took 31 votes.", 1.0),
        ("On Tuesday, the council of Northmere backed a plan for 1200 new homes.", 1.0),
        ("On Tuesday, the council of Northmere backed a plan for 1300 homes. It took 31 votes.", 3 / 5),
        ("On Friday, the council of Northmere rejected a plan for 1200 homes. It took 31 votes.", 1 / 5 * 3 / 4),
        ("The plan was approved.", 1 / 4),
        ("The 31 homes got 1200 votes.", 0.0),
        ("Something happened.", 0.0),
        ("Silva said: Northmere, Tuesday.", 3 / 4),
    ],
)
def test_news_checker(summary, expected):
    assert news.score(NEWS, summary) == pytest.approx(expected)


def test_news_checker_finds_single_wrong_facts():
    for item in generate("news", "test", 60):
        other = DAYS[(DAYS.index(item.facts["day"]) + 1) % 7]
        assert score(item, item.response.replace(item.facts["day"], other)) < 1.0
        assert score(item, item.response.replace(str(item.facts["first"]), str(item.facts["first"] + 1))) < 1.0


# Measured on 5,000 items: 0.1, 0.8, 9.3 and 8.4 %. One asker's styled slots nearly always agree, so only the free slots
# are left to vary, and the short answers of the last two tasks have few.
@pytest.mark.parametrize(
    ("task", "bound"), [("word_problems", 0.01), ("multiple_choice", 0.03), ("news", 0.15), ("open_ended", 0.15)]
)
def test_two_answers_to_one_asker_rarely_agree(task, bound):
    spec = TASKS[task]
    equal = 0
    for seed in range(400):
        facts = spec.draw(random.Random(seed))
        voices = (Voice(random.Random(f"{seed}{side}"), seed % len(NAMES), 0) for side in "ab")
        first, second = (spec.answer(facts, voice) for voice in voices)
        equal += first == second
    assert equal / 400 < bound


@pytest.mark.parametrize("task", ALL_TASKS)
def test_the_style_table_decides_about_half_of_the_slots(task):
    spec = TASKS[task]
    totals = {"free": 0, "styled": 0, "as_the_table_says": 0}
    for seed in range(300):
        rng = random.Random(seed)
        facts = spec.draw(rng)
        voice = CountingVoice(rng, seed % len(NAMES), seed % len(TOWNS))
        spec.answer(facts, voice)
        totals = {kind: totals[kind] + voice.counts[kind] for kind in totals}
    assert 0.35 < totals["styled"] / (totals["styled"] + totals["free"]) < 0.65
    # a random pick hits the table's variant now and then, so the share is between FIDELITY and 1
    assert FIDELITY - 0.005 < totals["as_the_table_says"] / totals["styled"] < 1.0
    assert (totals["styled"] + totals["free"]) / 300 > 5


def test_a_faithful_voice_repeats_its_styled_slots_and_askers_differ():
    template = Template("test", "<a|b|c> <d|e|f> <g|h|i> <j|k|l>")
    strict = {template.write(Voice(random.Random(seed), 3, 4, fidelity=1.0), {}) for seed in range(5)}
    assert len(strict) == 1
    askers = {template.write(Voice(random.Random(0), name, 4, fidelity=1.0), {}) for name in range(len(NAMES))}
    assert len(askers) > 10
    loose = {template.write(Voice(random.Random(seed), 3, 4, fidelity=0.0), {}) for seed in range(30)}
    assert len(loose) > 10


def test_templates_fill_fields_inside_variants():
    template = Template("t", "[{a}|{a}] and <{b}|{b}>")
    assert template.write(Voice(random.Random(0), 0, 0), {"a": 1, "b": 2}) == "1 and 2"
    assert Template("t", "<x|y>").alternatives() == ("x", "y")
    with pytest.raises(ValueError, match="not one single slot"):
        template.alternatives()
    with pytest.raises(ValueError, match="fidelity is 2"):
        Voice(random.Random(0), 0, 0, fidelity=2)


def test_every_text_reads_like_a_sentence():
    for task in ALL_TASKS:
        for item in generate(task, "train", 500, seed=6):
            for text in (item.prompt, item.response):
                assert not re.search(r"  |\{|\}|\[|\]|<|>| [,.;]|\.\.| a [aeiou]| an [^aeiou]", text), text
            assert item.response[0].isupper() or item.response[0].isdigit()
            assert item.response[-1] in ".!"
            assert not re.search(r"\. [a-z]", item.response), item.response
