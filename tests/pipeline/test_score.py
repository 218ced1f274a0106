"""Packed scoring against one forward per substitution, in float32, and training features against the decoding loop."""

from functools import cache

import numpy as np
import pytest
import reference
import torch
from tiny import HIDDEN_SIZE, VOCAB_SIZE, build_draft, build_model, prompts
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GraniteConfig

from hf_selfjudge.config import DRAFT_FEATURES, FEATURES, VECTOR_FEATURES
from hf_selfjudge.features import AHEAD, Block, judge_features
from hf_selfjudge.pipeline import score as stage
from hf_selfjudge.pipeline.mine import mine
from hf_selfjudge.pipeline.packing import grouping
from hf_selfjudge.pipeline.packing import rows as packing
from hf_selfjudge.pipeline.records import Mismatches, Response
from hf_selfjudge.pipeline.score import score
from hf_selfjudge.pipeline.settings import MineSettings, ScoreSettings
from hf_selfjudge.rules import Rule

LENGTHS = (0, 3, 20, 50)
VARIANTS = [(suffix, reduction) for suffix in ("likelihood", "confidence") for reduction in ("sum", "mean")]


@cache
def model_of(family: str):
    if family == "granite":  # scales its logits
        torch.manual_seed(0)
        shape = {"hidden_size": HIDDEN_SIZE, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = GraniteConfig(vocab_size=VOCAB_SIZE, initializer_range=0.3, logits_scaling=3.0, **shape)
        return AutoModelForCausalLM.from_config(config).eval()
    return build_model(family).float()


@cache
def draft_of(vocab_size: int = VOCAB_SIZE):
    return build_model("llama", seed=9, vocab_size=vocab_size).float()


@cache
def responses() -> list[Response]:
    """Prompts and answers of unequal length, one answer of a single token, one empty."""
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> list[int]:
        return torch.randint(3, VOCAB_SIZE, (count,), generator=generator).tolist()

    return [Response(index, draw(p), draw(a)) for index, (p, a) in enumerate([(5, 7), (9, 22), (3, 1), (2, 0)])]


@cache
def mismatches(alternatives: int, look_ahead: int) -> Mismatches:
    found = mine(draft_of(), responses(), MineSettings(alternatives, look_ahead))
    at = set(zip(found.prompt_ids.tolist(), found.positions.tolist(), strict=True))
    assert {(0, 0), (1, 21), (2, 0)} < at  # the first and the last token are among them
    return found


def read(model, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return _read(model, tuple(ids))


@cache
@torch.no_grad()
def _read(model, ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    output = model(torch.tensor([ids]), output_hidden_states=True)
    return output.logits[0].numpy(), output.hidden_states[-1][0].numpy()


def view(first: tuple, text: list[int], drafted: list[int], model, draft) -> reference.View:
    """What a verification forward over `drafted` behind `text` knows; `first` is the unchanged text's."""
    logits, hidden = read(model, text + drafted)
    at = len(text) - 1
    rows = [first[0][at], *logits[at + 1 :]]
    states = [first[1][at], *hidden[at + 1 :]]
    q = read(draft, text)[0][-1]
    q = np.pad(q, (0, max(0, VOCAB_SIZE - len(q))), constant_values=-np.inf)[:VOCAB_SIZE]
    return reference.View(drafted, rows, states, [q] * len(drafted), rows, [q] * len(drafted))


@cache
def one_by_one(family: str, alternatives: int, look_ahead: int):
    """The definition, one substitution and one whole-text forward at a time."""
    model, draft, found = model_of(family), draft_of(), mismatches(alternatives, look_ahead)
    known = grouping.known_ahead(found)
    scores, features, originals = {variant: [] for variant in VARIANTS}, [], []
    for row in range(len(found)):
        i, z = int(found.positions[row]), int(found.draft_tokens[row])
        response = responses()[int(found.prompt_ids[row])]
        prompt, answer = response.prompt, response.answer
        original, changed = read(model, prompt + answer), read(model, [*prompt, *answer[:i], z, *answer[i + 1 :]])
        log_p, log_p_changed = (torch.tensor(r).double().log_softmax(-1).numpy() for r, _ in (original, changed))
        at = len(prompt) + i - 1
        for suffix, reduction in VARIANTS:
            by_length = []
            for length in LENGTHS:
                s, suffix_at = log_p[at][z] - log_p[at][answer[i]], range(i + 1, min(i + length, len(answer) - 1) + 1)
                for j in suffix_at:
                    pair = [p[len(prompt) + j - 1] for p in (log_p_changed, log_p)]
                    s += np.subtract(*(p[answer[j]] if suffix == "likelihood" else p.max() for p in pair))
                by_length.append(s / (len(suffix_at) + 1) if reduction == "mean" else s)
            scores[suffix, reduction].append(by_length)
        block = [z, *found.continuations[row, : known[row]].tolist()]
        text = prompt + answer[:i]
        features.append(reference.features(view(original, text, block, model, draft), 0, FEATURES))
        originals.append(reference.features(view(original, text, [answer[i]], model, draft), 0, FEATURES))
    return (
        {name: torch.tensor(np.array(rows)) for name, rows in scores.items()},
        np.stack(features),
        np.stack(originals),
    )


def check(family: str, max_tokens: int, alternatives: int = 1, look_ahead: int = 4, **changes) -> None:
    given = mismatches(alternatives, look_ahead)
    settings = ScoreSettings(lengths=LENGTHS, max_tokens=max_tokens, originals=True, **changes)
    shuffled = given.select(torch.randperm(len(given)))
    found = score(model_of(family), responses(), shuffled, settings, draft_of())
    scores, features, originals = one_by_one(family, alternatives, look_ahead)
    for name in ("prompt_ids", "positions", "target_tokens", "draft_tokens", "ranks"):
        assert torch.equal(getattr(found, name), getattr(given, name))
    for (suffix, reduction), expected in scores.items():
        got = torch.stack([found.score(length, suffix, reduction) for length in LENGTHS], dim=1)
        torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found.matrix(FEATURES).numpy(), features, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found.matrix(FEATURES, original=True).numpy(), originals, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "granite"])
@pytest.mark.parametrize("max_tokens", [10, 60, 8192])
def test_packed_scores_equal_one_by_one(family, max_tokens):
    check(family, max_tokens)


@pytest.mark.parametrize("max_tokens", [60, 8192])
def test_alternatives_without_look_ahead(max_tokens):
    check("llama", max_tokens, alternatives=3, look_ahead=0)


def test_a_long_look_ahead_and_alternatives():
    check("mistral", 200, alternatives=2, look_ahead=6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_compiled_layers_score_the_same():
    for max_tokens in (8192, 60):  # many rows, single rows
        check("llama", max_tokens, compile=True)
    assert all(layer._compiled_call_impl is None for layer in model_of("llama").model.layers)


def test_the_forwards_keep_to_the_budget(monkeypatch):
    sizes = []
    real = stage.read_packed
    monkeypatch.setattr(
        stage, "read_packed", lambda m, packed, at: sizes.append(packed.tokens.numel()) or real(m, packed, at)
    )
    for budget in (64, 200, 500):
        settings = ScoreSettings(features=("hidden",), max_tokens=budget)
        score(model_of("llama"), responses(), mismatches(3, 0), settings)
        assert max(sizes) <= budget
        sizes.clear()


def test_a_group_asks_the_device_for_nothing(monkeypatch):
    """A number, a boolean index or a list as index would make the host wait for a GPU, in every group."""
    calls = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    real, sent = stage._score_group, []

    def watched(*args):
        with Watch():
            return real(*args)

    def counted(tensor, device):
        sent.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(stage, "_score_group", watched)
    monkeypatch.setattr(stage, "send", counted)
    monkeypatch.setattr(packing, "send", counted)
    own = tuple(name for name in FEATURES if name not in DRAFT_FEATURES)
    for _ in range(2):  # the first use in a process sets things up, some of it unseen
        calls.clear()
        sent.clear()
        score(model_of("llama"), responses(), mismatches(1, 4), ScoreSettings(features=own, originals=True))
    assert "mm" in calls  # it does see what is computed
    assert not {"_local_scalar_dense", "nonzero", "masked_select"}.intersection(calls)
    assert calls.count("lift_fresh") == len(sent)  # every tensor made on the host goes through `send`


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_group_never_waits_for_the_gpu(monkeypatch):
    model, own = build_model("llama").float().cuda(), tuple(name for name in FEATURES if name not in DRAFT_FEATURES)
    settings = ScoreSettings(lengths=LENGTHS, features=own, max_tokens=200, originals=True)
    expected = score(model_of("llama"), responses(), mismatches(1, 4), settings)
    score(model, responses(), mismatches(1, 4), settings)  # whatever happens only once
    real = stage._score_group

    def strict(*args):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return real(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(stage, "_score_group", strict)
    found = score(model, responses(), mismatches(1, 4), settings)
    for name in ("prefix", "likelihood", "confidence"):
        torch.testing.assert_close(found.columns[name], expected.columns[name], atol=1e-3, rtol=0)


class Recorder(Rule):
    """Keeps every block it is asked about, and accepts nothing."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    needs_draft_logits = True

    def accept(self, block):
        self.blocks.append(block)
        return torch.zeros_like(block.draft_tokens, dtype=torch.bool)


def everything(found: Mismatches) -> np.ndarray:
    return np.minimum((found.continuations >= 0).sum(1).numpy(), AHEAD)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_training_features_are_those_of_the_decoding_loop(family, monkeypatch):
    """The first mismatch of every block that the loop verified, against the same substitution in the finished text."""
    target = build_model(family)
    draft, recorder, prompt = build_draft(target, noise=0.08), Recorder(), prompts(1, seed=2)[0]
    extra = {"attention_mask": torch.ones_like(prompt), "do_sample": False}
    output = target.generate(
        prompt, assistant_model=draft, judge=recorder, max_new_tokens=40, num_assistant_tokens=6, **extra
    )
    response = Response(0, prompt[0].tolist(), output[0, prompt.shape[1] :].tolist())
    mined = mine(draft, [response], MineSettings(look_ahead=AHEAD))
    position, rows, expected = 0, [], []
    for block in recorder.blocks:
        drafted = block.draft_tokens[0].tolist()
        pairs = zip(drafted, response.answer[position:], strict=False)
        j = next((at for at, (d, y) in enumerate(pairs) if d != y), None)
        if j is None:
            position += len(drafted) + 1
            continue
        (row,) = (mined.positions == position + j).nonzero()[0].tolist()
        known = drafted[j + 1 : j + 1 + AHEAD]
        assert int(mined.draft_tokens[row]) == drafted[j]
        assert mined.continuations[row, : len(known)].tolist() == known  # what the draft said when decoding
        mined.continuations[row, len(known) :] = -1
        rows.append(row)
        expected.append(judge_features(block, FEATURES)[0, j])
        position += j + 1
    monkeypatch.setattr(grouping, "known_ahead", everything)
    assert len({int((mined.continuations[row] >= 0).sum()) for row in rows}) > 2
    found = score(target, [response], mined.select(torch.tensor(rows)), ScoreSettings(), draft)
    torch.testing.assert_close(found.matrix(FEATURES), torch.stack(expected), atol=1e-5, rtol=0)


def test_equal_forwards_give_equal_features_bit_for_bit(monkeypatch):
    """What scoring stores against the decoding loop's block around the same rows of the forward."""
    blocks: list[Block] = []
    real = stage.judge_features
    monkeypatch.setattr(
        stage, "judge_features", lambda block, names: blocks.append((block, names)) or real(block, names)
    )
    one = mismatches(1, 4).select(mismatches(1, 4).prompt_ids == 1)  # one response: blocks come in the table's order
    found = score(model_of("llama"), responses(), one, ScoreSettings(), draft_of())
    assert len(blocks) == 2  # with and without look-ahead
    before, behind = 2, 1
    for block, names in blocks:
        count, gamma = block.draft_tokens.shape
        wide = {}
        for name, places in (("draft_tokens", gamma), ("target_logits", gamma + 1), ("hidden", gamma + 1)):
            inner = getattr(block, name)
            noise = torch.randn(count, before + places + behind, *inner.shape[2:])
            wide[name] = noise.abs().to(inner.dtype)
            wide[name][:, before : before + places] = inner
        wide["draft_logits"] = torch.randn(count, before + gamma + behind, VOCAB_SIZE)
        if block.draft_logits is not None:
            wide["draft_logits"][:, before : before + gamma] = block.draft_logits
        decoding = judge_features(Block(**wide, lengths=block.lengths + before), names)[:, before]
        assert torch.equal(found.matrix(names), decoding)


def test_the_known_part_of_the_future_is_drawn_evenly_and_always_alike():
    count = 5000
    ids, positions = torch.arange(count) % 50, torch.arange(count) // 50
    rest = {"target_tokens": ids, "draft_tokens": ids, "ranks": torch.zeros_like(ids), "log_q": ids.float()}
    table = Mismatches(prompt_ids=ids, positions=positions, continuations=torch.ones(count, 4).long(), **rest)
    known = grouping.known_ahead(table)
    assert np.bincount(known) == pytest.approx(np.full(5, count / 5), rel=0.1)
    for prompt in (0, 17):  # within a prompt too
        assert len(set(known[ids.numpy() == prompt])) == 5
    some = torch.tensor([7, 1234, 4999])
    assert np.array_equal(grouping.known_ahead(table.select(some)), known[some.numpy()])
    table.continuations[:, 2:] = -1
    assert np.array_equal(grouping.known_ahead(table), np.minimum(known, 2))


def test_a_draft_with_another_padding_of_the_vocabulary():
    draft = draft_of(VOCAB_SIZE - 11)
    found = mine(draft, responses(), MineSettings(look_ahead=0), vocab_size=VOCAB_SIZE)
    scored = score(model_of("llama"), responses(), found, ScoreSettings(features=("log_q", "kl_qp")), draft)
    torch.testing.assert_close(scored.features["log_q"], found.log_q, atol=1e-5, rtol=0)
    assert torch.isfinite(scored.features["kl_qp"]).all()


def test_precision_of_the_columns():
    model = build_model("llama")  # float64
    found = score(model, responses(), mismatches(1, 4), ScoreSettings(originals=True), draft_of())
    none = score(
        model, responses(), mismatches(1, 4).select(torch.arange(0)), ScoreSettings(originals=True), draft_of()
    )
    for name, column in found.columns.items():
        kind = name.split(".")[-1] in VECTOR_FEATURES
        integer = not column.is_floating_point()
        assert integer or column.dtype == (torch.float64 if kind else torch.float32), name
        assert none.columns[name].dtype == column.dtype
        assert none.columns[name].shape == (0, *column.shape[1:])
    assert len(none.columns) == len(found.columns)


def test_attention_that_takes_no_masks_is_refused():
    model = build_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="sdpa"):
        score(model, responses(), mismatches(1, 0), ScoreSettings(features=("hidden",)))


def test_bad_input_is_refused():
    model, given = model_of("llama"), mismatches(1, 0)
    with pytest.raises(ValueError, match=r"kl_pq.*pass the draft"):
        score(model, responses(), given, ScoreSettings(features=("hidden", "kl_pq")))
    with pytest.raises(ValueError, match=r"prompts \[1\]"):
        score(model, [responses()[0], *responses()[2:]], given, ScoreSettings(features=("hidden",)))
    short = [Response(r.prompt_id, r.prompt, r.answer[:4]) for r in responses()]
    with pytest.raises(ValueError, match="behind its answer"):
        score(model, short, given, ScoreSettings(features=("hidden",)))
