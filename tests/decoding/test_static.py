"""Static caches: the same tokens as with dynamic ones, in all families, alone and in ragged batches."""

from types import SimpleNamespace

import pytest
import torch
from tiny import FAMILIES, build_judge, build_model, prompts

from hf_selfjudge.decoding.loop import Queue
from hf_selfjudge.engine import forward as engine
from hf_selfjudge.engine.body import FusedBody, fuse, why_not_fusable
from hf_selfjudge.engine.row_cache import RowCache, cache_bytes
from hf_selfjudge.rules import Rule

LENGTH = 20


def ragged(texts):
    width = max(text.shape[1] for text in texts)
    pads = [width - text.shape[1] for text in texts]
    ids = torch.cat([torch.nn.functional.pad(t, (p, 0)) for t, p in zip(texts, pads, strict=True)])
    mask = torch.stack([(torch.arange(width) >= pad).long() for pad in pads])
    return {"input_ids": ids, "attention_mask": mask}


def decode(pair, texts, judge, gamma, cache, **kwargs):
    return pair.target.generate(
        **ragged(texts),
        assistant_model=pair.draft,
        judge=judge,
        num_assistant_tokens=gamma,
        cache_implementation=cache,
        return_dict_in_generate=True,
        **{"do_sample": False, "max_new_tokens": LENGTH, **kwargs},
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_static_equals_dynamic(loose_pairs, family):
    pair, texts = loose_pairs[family], prompts(5, seed=22)
    judge = build_judge(threshold=0.5)
    for gamma, rows in ((1, 1), (5, 1), (4, 5), (9, 5)):
        eos = int(pair.judged(texts[0], judge, LENGTH, gamma).sequences[0, texts[0].shape[1] + 6])
        expected = decode(pair, texts[:rows], judge, gamma, None, eos_token_id=eos)
        found = decode(pair, texts[:rows], judge, gamma, "static", eos_token_id=eos)
        assert torch.equal(found.sequences, expected.sequences)
        assert found.judge_stats.sources == expected.judge_stats.sources
        assert found.judge_stats.drafted == expected.judge_stats.drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_waiting_rows_take_the_places_of_those_that_are_done(loose_pairs, family):
    pair, texts, judge = loose_pairs[family], prompts(13, seed=25), build_judge(threshold=0.5)
    eos = int(pair.judged(texts[0], judge, LENGTH, 4).sequences[0, texts[0].shape[1] + 6])
    expected = decode(pair, texts, judge, 4, "static", eos_token_id=eos)
    for at_once in (1, 3, 8, 12, 13, 40):
        found = decode(pair, texts, judge, 4, "static", eos_token_id=eos, judge_rows_at_once=at_once)
        assert torch.equal(found.sequences, expected.sequences)
        for mine, theirs in zip(found.judge_stats.rows, expected.judge_stats.rows, strict=True):
            assert (mine.sources, mine.drafted, mine.cycles) == (theirs.sources, theirs.drafted, theirs.cycles)
            assert [one.position for one in mine.replacements] == [one.position for one in theirs.replacements]


def test_rules_hear_which_row_a_block_belongs_to(loose_pairs):
    pair, texts, seen = loose_pairs["llama"], prompts(9, seed=26), {}

    class Listening(Rule):
        def accept(self, block):
            for sequence, drafted in zip(block.sequences.tolist(), block.drafted.sum(1).tolist(), strict=True):
                seen[sequence] = seen.get(sequence, 0) + drafted
            return torch.zeros_like(block.draft_tokens, dtype=torch.bool)

    found = decode(pair, texts, Listening(), 3, "static", judge_rows_at_once=4)
    assert [seen[row] for row in range(9)] == [stats.drafted for stats in found.judge_stats.rows]


def test_only_new_prompts_are_read_when_rows_join(loose_pairs, monkeypatch):
    pair, texts, read = loose_pairs["llama"], prompts(9, seed=27), []
    prefill = engine.Forward.prefill
    monkeypatch.setattr(
        engine.Forward,
        "prefill",
        lambda self, ids, at: read.append((self.cache.rows, *ids.shape)) or prefill(self, ids, at),
    )
    engine.release()
    decode(pair, texts, "exact", 3, "static", judge_rows_at_once=8)
    first, later = read[:2], read[2:]
    assert {rows for _, rows, _ in first} == {8}
    assert {rows for _, rows, _ in later} == {1}


def test_places_are_refilled_together():
    queue = Queue([0] * 40, 16)
    assert [queue.next(going) for going in (16, 15)] == [range(0), range(0)]
    assert queue.next(14) == range(16, 18)
    assert queue.next(0) == range(18, 34)
    assert queue.next(15) == range(0)
    assert queue.next(3) == range(34, 40)
    assert queue.next(0) == range(0)


def test_rows_at_once_needs_static_caches(loose_pairs):
    pair, texts = loose_pairs["llama"], prompts(3, seed=2)
    with pytest.raises(ValueError, match=r"rows_at_once = 2 of 3 rows needs static caches"):
        decode(pair, texts, "exact", 3, None, judge_rows_at_once=2)
    with pytest.raises(ValueError, match=r"rows_at_once is 0, expected at least 1"):
        decode(pair, texts, "exact", 3, "static", judge_rows_at_once=0)


def test_exact_decoding_is_the_targets_own(pair):
    for prompt in prompts(4, seed=5):
        found = decode(pair, [prompt], build_judge(threshold=1.0), 6, "static")
        assert torch.equal(found.sequences, pair.plain(prompt, LENGTH))


def test_sampling_draws_the_same_tokens(loose_pairs):
    pair, texts = loose_pairs["llama"], prompts(3, seed=2)
    outputs = []
    for cache in (None, "static"):
        torch.manual_seed(5)
        outputs.append(decode(pair, texts, build_judge(threshold=0.5), 4, cache, do_sample=True, temperature=0.8))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)


def test_a_prompt_of_one_token(pair):
    prompt = torch.tensor([[17]])
    assert torch.equal(decode(pair, [prompt], "exact", 3, "static").sequences, pair.plain(prompt, LENGTH))


def test_slots_are_halved_as_rows_finish(loose_pairs):
    forward = engine.Forward(loose_pairs["llama"].target, 12, 32)
    assert [forward.slots(rows) for rows in (12, 7, 6, 4, 3, 2, 1)] == [12, 12, 6, 6, 3, 3, 1]


def test_a_larger_cache_serves_a_smaller_batch(loose_pairs):
    pair, texts, judge = loose_pairs["llama"], prompts(5, seed=24), build_judge(threshold=0.5)
    engine.release()
    decode(pair, texts, judge, 4, "static")
    (kept,) = engine._idle[pair.target]
    found = decode(pair, texts[1:4], judge, 4, "static")
    assert engine._idle[pair.target] == [kept]
    assert torch.equal(found.sequences, decode(pair, texts[1:4], judge, 4, "dynamic").sequences)


def test_long_prompts_are_read_in_pieces(pair, monkeypatch):
    monkeypatch.setattr(engine, "PREFILL", 7)
    prompt = torch.randint(3, 100, (1, 40))
    assert torch.equal(decode(pair, [prompt], "exact", 5, "static").sequences, pair.plain(prompt, LENGTH))


def test_caches_are_kept_between_calls_and_replaced_with_the_weights(loose_pairs):
    pair, texts = loose_pairs["llama"], prompts(2, seed=4)
    engine.release()
    decode(pair, texts, "exact", 4, "static")
    (kept,) = engine._idle[pair.target]
    decode(pair, texts[::-1], "exact", 4, "static")
    assert engine._idle[pair.target] == [kept]
    assert kept.fits(pair.target, 2, 100)
    assert kept.fits(pair.target, 1, 100)
    assert not kept.fits(pair.target, 3, 100)
    assert not kept.fits(pair.target, 2, 10_000)
    weight = pair.target.lm_head.weight
    before = weight.data
    weight.data = before.clone()
    assert not kept.fits(pair.target, 2, 100)
    weight.data = before
    engine.release(pair.target)
    assert pair.target not in engine._idle


def test_fusing_moves_weights_without_changing_the_model(tmp_path):
    model = build_model("qwen2")
    ids = torch.randint(3, 100, (2, 12))
    before, state = model(ids).logits, {name: value.clone() for name, value in model.state_dict().items()}
    assert why_not_fusable(model) is None
    FusedBody(model, RowCache(model, 1, 16))
    assert torch.equal(model(ids).logits, before)
    attention = model.model.layers[0].self_attn
    joined, _ = fuse([attention.q_proj, attention.k_proj, attention.v_proj])
    assert joined.data_ptr() == attention.q_proj.weight.data_ptr()  # nothing is moved a second time
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


def test_caches_that_would_crowd_the_gpu_are_refused(monkeypatch):
    class OnGpu:
        device = torch.device("cuda")

    model = build_model()
    one = cache_bytes(model, 2, 256)
    assert one == RowCache(model, 2, 256).bytes
    monkeypatch.setattr(engine, "cache_bytes", lambda model, rows, capacity: 40 * rows)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 120)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(engine, "_idle", {})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))
    assert engine.why_too_large((OnGpu(), OnGpu()), 2, 100) is None
    assert "take 0.0 GB" in engine.why_too_large((OnGpu(), OnGpu()), 3, 100)
    one, other = OnGpu(), OnGpu()
    kept = SimpleNamespace(cache=SimpleNamespace(bytes=160), fits=lambda *needs: False)
    monkeypatch.setattr(engine, "_idle", {one: [kept]})
    assert engine.why_too_large((one, other), 3, 100) is None  # what is kept for other shapes makes room
    kept.fits = lambda *needs: True
    assert engine.why_too_large((one, other), 4, 100) is None  # nothing is needed for it
    assert "for 5 x 100 tokens" in engine.why_too_large((one, other), 5, 100)  # the other's alone is too large
    assert engine.why_too_large((model, model), 10**6, 10**9) is None  # where nobody said how much is free


def test_what_static_caches_cannot_do_is_said(pair):
    prompt = prompts(1)[0]
    with pytest.raises(ValueError, match="draft model"):
        pair.target.generate(
            prompt, judge="exact", prompt_lookup_num_tokens=3, cache_implementation="static", max_new_tokens=4
        )
