"""AutoJudge's evidence, against an independent slow loop and against targets made for the purpose."""

import random
import types

import pytest
import torch
from tiny import VOCAB_SIZE, build_model

from hf_selfjudge import checkers
from hf_selfjudge.pipeline import verdicts
from hf_selfjudge.pipeline.autojudge import autojudge, autojudge_prompts, finish
from hf_selfjudge.pipeline.label import judge_outcomes
from hf_selfjudge.pipeline.records import Mismatches, Prompt, Response
from hf_selfjudge.pipeline.settings import LabelSettings

EOS = 7
LIMIT = 14


class Numbers:
    """A tokenizer whose text is the ids."""

    chat_template = None

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(str(token) for token in ids if token != EOS)

    def __call__(self, text, verbose=True):
        return {"input_ids": [3 + ord(letter) % 90 for letter in text]}


class Remainder:
    """A checker: the outcome is the answer's sum modulo `reference`; an answer that begins with a 9 has none."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def outcome(self, response, reference):
        self.asked.append(response)
        return None if response.startswith("9 ") else sum(map(int, response.split())) % reference

    def same(self, a, b):
        return a == b


@pytest.fixture
def checker(monkeypatch):
    found = Remainder()
    monkeypatch.setitem(checkers.CHECKERS, "remainder", found)
    return found


@pytest.fixture(scope="module")
def target():
    model = build_model("llama", max_position_embeddings=11 + LIMIT)
    model.generation_config.eos_token_id = EOS
    return model


def greedy(model, ids: list[int], count: int) -> list[int]:
    """Cache-free greedy decoding."""
    new: list[int] = []
    while len(new) < count and (not new or new[-1] != EOS):
        new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


def make_responses(target, checker_name: str | None = "remainder") -> tuple[list[Prompt], list[Response]]:
    """Greedy answers; the model never ends by itself, so an end is put behind most of them."""
    generator = torch.Generator().manual_seed(0)
    prompts, responses = [], []
    for n, length in enumerate((4, 11, 7, 5, 9)):
        tokens = torch.randint(10, VOCAB_SIZE, (length,), generator=generator).tolist()
        prompts.append(Prompt(n, "source", "train", f"prompt {n}", tokens, checker_name, 2))
        answer = greedy(target, tokens, LIMIT if n == 3 else 8)
        responses.append(Response(n, tokens, answer if n == 3 else [*answer, EOS]))
    responses[4] = Response(4, responses[4].prompt, [9, 10, EOS])  # no outcome
    return prompts, responses


def make_mismatches(entries: list[tuple[int, int, int, int]]) -> Mismatches:
    """From (prompt, position, rank, token)."""
    prompt_ids, positions, ranks, tokens = (torch.tensor(column) for column in zip(*entries, strict=True))
    nothing = torch.zeros(len(entries))
    return Mismatches(prompt_ids, positions, 0 * positions, tokens, ranks, nothing, torch.zeros(len(entries), 0))


ENTRIES = [
    (0, 0, 0, 50), (0, 0, 1, 51), (0, 3, 0, 52), (0, 8, 0, 60), (0, 5, 0, EOS), (1, 1, 0, 53), (1, 7, 0, 54),
    (2, 2, 0, 55), (3, 2, 0, 56), (4, 1, 0, 57),
]  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_greedy_evidence_equals_a_slow_loop(target, checker, batch_size, caplog):
    prompts, responses = make_responses(target)
    found = autojudge(
        target, Numbers(), prompts, responses, make_mismatches(ENTRIES), LabelSettings(), LIMIT, batch_size
    )
    expected = []
    for prompt_id, position, rank, token in ENTRIES:
        if prompt_id in (3, 4):  # cut off, and without an outcome
            continue
        response = responses[prompt_id]
        answer = [*response.answer[:position], token]
        if token != EOS:
            answer += greedy(target, response.prompt + answer, LIMIT - len(answer))
        own, other = (Remainder().outcome(Numbers().decode(ids), 2) for ids in (response.answer, answer))
        expected.append((prompt_id, position, rank, token, int(own == other)))
    columns = (found.prompt_ids, found.positions, found.ranks, found.draft_tokens, found.kept)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert {kept for *_, kept in expected} == {0, 1}
    assert found.tried.tolist() == [1] * len(expected)
    assert found.control_tried.tolist() == [0] * len(expected)
    assert "1 responses that did not end" in caplog.text


def test_texts_are_checked_once_and_prefixes_finished_once(target, checker, monkeypatch):
    prompts, responses = make_responses(target)
    written = []
    finished = finish

    def counting(target, prompts, starts, *rest):
        written.extend(map(tuple, starts))
        return finished(target, prompts, starts, *rest)

    monkeypatch.setattr("hf_selfjudge.pipeline.autojudge.finish", counting)
    entries = [(0, 2, 0, 50), (0, 2, 1, 51), (0, 2, 2, 52), (0, 8, 0, 53)]
    settings = LabelSettings(repeats=3)
    found = autojudge(target, Numbers(), prompts[:1], responses[:1], make_mismatches(entries), settings, LIMIT, 8)
    unchanged = tuple(responses[0].answer[:3])
    assert written.count(unchanged) == 3  # shared by the three alternatives
    assert len(written) == 3 * (4 + 2)
    assert len(checker.asked) == len(set(checker.asked))
    assert found.tried.tolist() == found.control_tried.tolist() == [3] * 4
    assert found.control_kept[3] == 3  # the unchanged text ends there


def test_samples_are_fixed_by_the_seed(target, checker):
    prompts, responses = make_responses(target)
    settings = LabelSettings(repeats=4, temperature=1.5)
    run = [
        autojudge(target, Numbers(), prompts, responses, make_mismatches(ENTRIES), settings, LIMIT, 5, seed)
        for seed in (0, 0, 1)
    ]
    assert torch.equal(run[0].kept, run[1].kept)
    assert not torch.equal(run[0].kept, run[2].kept)


def test_answers_never_outgrow_their_room(target, checker):
    """The context is exactly the longest prompt and answer; learned positions would fail beyond."""
    small = build_model("gpt2", n_positions=11 + LIMIT)
    small.generation_config.eos_token_id = EOS
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(10, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (11, 3, 11, 6, 11)]
    starts = [torch.randint(10, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (13, 1, 1, 5, LIMIT)]
    answers = finish(small, prompts, starts, LIMIT, 8)
    for prompt, start, answer in zip(prompts, starts, answers, strict=True):
        assert answer == start + greedy(small, prompt + start, LIMIT - len(start))
        assert len(answer) == LIMIT or answer[-1] == EOS


class Dice:
    """A target that ends its answer with a right or wrong word by chance, or by a substitution that decides it.

    `luck` is the probability of the right word (20) when sampling; a token 30 anywhere makes it always wrong (21).
    """

    device = torch.device("cpu")

    def __init__(self, luck: float) -> None:
        self.luck = luck
        self.generation_config = types.SimpleNamespace(eos_token_id=EOS, pad_token_id=0)
        text = types.SimpleNamespace(max_position_embeddings=64)
        self.config = types.SimpleNamespace(get_text_config=lambda: text)

    def generate(self, input_ids, attention_mask):
        words = [21 if 30 in row or torch.rand(()) >= self.luck else 20 for row in input_ids.tolist()]
        return torch.cat([input_ids, torch.tensor([[word, EOS] for word in words])], dim=1)


def dice_outcomes(luck: float, repeats: int, count: int = 60):
    prompts = [Prompt(n, "dice", "train", "?", [10], "remainder", 2) for n in range(count)]
    responses = [Response(n, [10], [11, 12, 20, EOS]) for n in range(count)]  # the greedy answer is even
    # 40 and 30 are both even: 40 changes nothing, 30 makes the next word wrong
    entries = [(n, position, 0, (40, 30)[position]) for n in range(count) for position in (0, 1)]
    settings = LabelSettings(repeats=repeats)
    rows = make_mismatches(entries)
    outcomes = autojudge(Dice(luck), Numbers(), prompts, responses, rows, settings, 8, 16)
    return outcomes, judge_outcomes(outcomes, settings)


class Parity(Remainder):
    """Right is a last word that is even."""

    def outcome(self, response, reference):
        return int(response.split()[-1]) % reference


def test_the_control_tells_chance_from_cause(monkeypatch):
    monkeypatch.setitem(checkers.CHECKERS, "remainder", Parity())
    torch.manual_seed(0)
    outcomes, found = dice_outcomes(luck=0.8, repeats=8)
    harmless, harmful = found[outcomes.positions == 0], found[outcomes.positions == 1]
    assert (harmless == 1).double().mean() > 0.8
    assert (harmless == 0).double().mean() < 0.1
    assert (harmful == 0).double().mean() > 0.8
    # without the control a fifth of the harmless ones would be called harmful
    _, plain = dice_outcomes(luck=0.8, repeats=0)
    assert (plain[outcomes.positions == 0] == 0).double().mean() > 0.1


def test_where_chance_alone_decides_nobody_does(monkeypatch):
    monkeypatch.setitem(checkers.CHECKERS, "remainder", Parity())
    torch.manual_seed(0)
    _, found = dice_outcomes(luck=0.2, repeats=8)
    assert (found == -1).double().mean() > 0.9
    _, found = dice_outcomes(luck=1.0, repeats=2)
    assert sorted(set(found.tolist())) == [0, 1]


def test_open_prompts_are_asked_about_only_with_autojudge_plus(target, monkeypatch):
    prompts, responses = make_responses(target, None)
    rows = make_mismatches(ENTRIES)
    assert len(autojudge(target, Numbers(), prompts, responses, rows, LabelSettings(), LIMIT, 4)) == 0
    questions = []

    def replies(model, texts, max_new_tokens, batch_size, progress=None, temperature=0.0, seed=0):
        questions.extend(map(tuple, texts))
        return ((place, [place]) for place in range(len(texts)))

    words = ("[SAME]", "well, [DIFFERENT]", "hm")
    tokenizer = Numbers()
    tokenizer.decode = lambda ids, skip_special_tokens=False: (
        words[ids[0] % 3] if len(ids) == 1 and ids[0] < 10 else Numbers().decode(ids)
    )
    monkeypatch.setattr(verdicts, "complete", replies)
    monkeypatch.setattr(verdicts, "context_length", lambda target: None)
    settings = LabelSettings(labels="autojudge", open_tasks="autojudge+")
    entries = [(0, 0, 0, 50), (0, 3, 0, 52), (0, 4, 0, 53), (1, 1, 0, 54), (1, 2, 0, responses[1].answer[2])]
    found = autojudge(target, tokenizer, prompts, responses, make_mismatches(entries), settings, LIMIT, 4)
    assert len(questions) == len(set(questions)) == 5  # the last one finishes otherwise than the response ended
    assert found.tried.tolist() == [1, 1, 0, 1, 1]
    assert found.kept.tolist() == [1, 0, 0, 1, 0]
    assert judge_outcomes(found, settings).tolist() == [1, 0, -1, 1, 0]


def test_an_unchanged_text_needs_no_question_and_a_long_one_gets_none(target, monkeypatch):
    prompts, responses = make_responses(target, None)
    monkeypatch.setattr(verdicts, "complete", lambda *rest: pytest.fail("asked") if rest[1] else iter(()))
    settings = LabelSettings(labels="autojudge", open_tasks="autojudge+")
    # an end in place of the end is the same text; the other question is longer than the context of 25
    entries = [(0, 8, 0, EOS), (0, 1, 0, 50)]
    found = autojudge(target, Numbers(), prompts, responses, make_mismatches(entries), settings, LIMIT, 4)
    assert found.tried.tolist() == [1, 0]
    assert found.kept.tolist() == [1, 0]


def test_a_chat_template_is_used_where_there_is_one(target):
    prompts, responses = make_responses(target, None)
    tokenizer = Numbers()
    seen = []
    tokenizer.chat_template = "x"
    tokenizer.apply_chat_template = lambda messages, **options: seen.append((messages, options)) or [1, 2, 3]
    settings = LabelSettings(labels="autojudge", open_tasks="autojudge+")
    autojudge(target, tokenizer, prompts, responses, make_mismatches([(0, 1, 0, 50)]), settings, LIMIT, 4)
    (messages, options), *_ = seen
    assert options["add_generation_prompt"]
    assert "prompt 0" in messages[0]["content"]


def test_a_reference_that_cannot_be_checked_names_its_prompt(target):
    prompts, responses = make_responses(target, "code")
    with pytest.raises(ValueError, match="Prompt 0 of source cannot be checked: A code reference"):
        autojudge(target, Numbers(), prompts, responses, make_mismatches(ENTRIES), LabelSettings(), LIMIT, 4)


def many_prompts() -> list[Prompt]:
    sources = [("gsm8k", "math", 300), ("math500", "math", 40), ("humaneval", "code", 30), ("dolly", None, 100)]
    listed = [(source, checker) for source, checker, count in sources for _ in range(count)]
    splits = random.Random(0).choices(("train", "validation", "calibration"), (6, 2, 2), k=len(listed))
    return [
        Prompt(n, source, split, "", [1], checker)
        for n, ((source, checker), split) in enumerate(zip(listed, splits, strict=True))
    ]


def test_prompts_that_calibrate_tau_are_training_ones_spread_over_checkers_and_sources():
    prompts = many_prompts()
    chosen = autojudge_prompts(prompts, LabelSettings(autojudge_prompts=24))
    assert chosen == sorted(set(chosen)) == autojudge_prompts(prompts, LabelSettings(autojudge_prompts=24))
    assert all(prompts[n].split == "train" and prompts[n].checker for n in chosen)
    names = [prompts[n].source for n in chosen]
    assert [names.count(name) for name in ("gsm8k", "math500", "humaneval")] == [6, 6, 12]
    more = autojudge_prompts(prompts, LabelSettings(autojudge_prompts=1000))
    assert set(more) == {p.prompt_id for p in prompts if p.split == "train" and p.checker}
    assert set(chosen) < set(more)


def test_which_prompts_other_labels_need():
    prompts = many_prompts()
    assert autojudge_prompts(prompts, LabelSettings(tau=-2.0)) == []
    checkable = [p.prompt_id for p in prompts if p.checker]
    for labels in ("autojudge", "hybrid"):
        assert autojudge_prompts(prompts, LabelSettings(labels=labels, tau=1.0)) == checkable
        everything = LabelSettings(labels=labels, open_tasks="autojudge+")
        assert autojudge_prompts(prompts, everything) == list(range(len(prompts)))
    open_only = [p for p in prompts if p.checker is None]
    assert autojudge_prompts(open_only, LabelSettings()) == []
    asked = autojudge_prompts(open_only, LabelSettings(open_tasks="autojudge+", autojudge_prompts=10))
    assert len(asked) == 10


@pytest.mark.parametrize("repeats", [0, 2])
def test_static_caches_give_the_same_evidence(target, checker, monkeypatch, repeats):
    prompts, responses = make_responses(target)
    arguments = (target, Numbers(), prompts, responses, make_mismatches(ENTRIES), LabelSettings(repeats=repeats), LIMIT)
    slow = autojudge(*arguments, 4)
    monkeypatch.setattr("hf_selfjudge.pipeline.autojudge.is_fast", lambda model: True)
    fast = autojudge(*arguments, 4)
    assert torch.equal(fast.tried, slow.tried)
    assert torch.equal(fast.control_tried, slow.control_tried)
    if not repeats:  # samples are drawn in another order
        assert torch.equal(fast.kept, slow.kept)


def test_what_the_draft_says_next_goes_with_its_token(target, checker):
    prompts, responses = make_responses(target)
    table = make_mismatches([(0, 2, 0, 50), (0, 3, 0, 52), (1, 1, 0, 53)])
    behind = torch.tensor([[60, 61], [EOS, -1], [62, 63]])
    table = Mismatches(*list(table.columns.values())[:-1], behind)
    found = autojudge(target, Numbers(), prompts, responses, table, LabelSettings(), LIMIT, 4, follow=2)
    expected = []
    for owner, position, tokens in ((0, 2, [50, 60, 61]), (0, 3, [52, EOS]), (1, 1, [53, 62, 63])):
        response = responses[owner]
        answer = [*response.answer[:position], *tokens]
        if answer[-1] != EOS:
            answer += greedy(target, response.prompt + answer, LIMIT - len(answer))
        own, other = (Remainder().outcome(Numbers().decode(ids), 2) for ids in (response.answer, answer))
        expected.append(int(own == other))
    assert found.kept.tolist() == expected
