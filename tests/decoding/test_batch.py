"""Batches: every row is what it would have been alone."""

import pytest
import torch
from tiny import FAMILIES, Always, build_judge, prompts
from transformers import StoppingCriteria, StoppingCriteriaList

LENGTH = 20


def ragged(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """A left-padded batch."""
    width = max(text.shape[1] for text in texts)
    pads = [width - text.shape[1] for text in texts]
    ids = torch.cat([torch.nn.functional.pad(t, (p, 0)) for t, p in zip(texts, pads, strict=True)])
    mask = torch.stack([(torch.arange(width) >= pad).long() for pad in pads])
    return {"input_ids": ids, "attention_mask": mask}


def batched(pair, texts, judge, gamma, **kwargs):
    return pair.target.generate(
        **ragged(texts),
        assistant_model=pair.draft,
        judge=judge,
        num_assistant_tokens=gamma,
        return_dict_in_generate=True,
        **{"do_sample": False, "max_new_tokens": LENGTH, **kwargs},
    )


def response(sequence: torch.Tensor, width: int, eos: int | None) -> list[int]:
    tokens = sequence[width:].tolist()
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threshold", [0.5, 1.0])
def test_rows_equal_single_runs(loose_pairs, family, threshold):
    pair, texts = loose_pairs[family], prompts(6, seed=21)
    judge = build_judge(threshold=threshold)
    ends = set()
    for gamma in (1, 4, 9):
        eos = int(pair.judged(texts[2], judge, LENGTH, gamma).sequences[0, texts[2].shape[1] + 4])  # one row ends early
        out = batched(pair, texts, judge, gamma, eos_token_id=eos)
        width = max(t.shape[1] for t in texts)
        assert len(out.judge_stats.rows) == len(texts)
        for row, text in enumerate(texts):
            alone = pair.judged(text, judge, LENGTH, gamma, eos_token_id=eos)
            expected = alone.sequences[0, text.shape[1] :].tolist()
            assert response(out.sequences[row], width, eos) == expected
            ends.add(len(expected))
            stats = out.judge_stats.rows[row]
            assert stats.sources == alone.judge_stats.sources
            assert [(r.position, r.target_token, r.draft_token) for r in stats.replacements] == [
                (r.position, r.target_token, r.draft_token) for r in alone.judge_stats.replacements
            ]
        assert out.judge_stats.new_tokens == sum(len(s.sources) for s in out.judge_stats.rows)
    assert len(ends) > 1  # rows of different length


def test_large_batches_decode_alike(pair, monkeypatch):
    """Beyond a size rules are asked at mismatches only; here everything counts as large."""
    texts, judge = prompts(6, seed=31), build_judge(threshold=0.5)
    expected = batched(pair, texts, judge, 5)
    monkeypatch.setattr("hf_selfjudge.verification.LARGE", 0)
    monkeypatch.setattr("hf_selfjudge.features.LARGE", 0)
    found = batched(pair, texts, judge, 5)
    assert torch.equal(found.sequences, expected.sequences)
    assert found.judge_stats.judged_in == expected.judge_stats.judged_in > 0
    for row, other in zip(found.judge_stats.rows, expected.judge_stats.rows, strict=True):
        assert row.sources == other.sources
        said, expects = ([r.judge_probability for r in one.replacements] for one in (row, other))
        assert said == pytest.approx(expects)


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_batches_equal_plain_batched_generate(pairs, family):
    pair, texts = pairs[family], prompts(5, seed=22)
    eos = int(pair.plain(texts[1], LENGTH)[0, texts[1].shape[1] + 6])
    options = {"do_sample": False, "max_new_tokens": LENGTH, "eos_token_id": eos, "pad_token_id": 0}
    for extra in ({}, {"repetition_penalty": 1.4, "min_new_tokens": 9}):
        plain = pair.target.generate(**ragged(texts), **options, **extra)
        out = batched(pair, texts, Always(False), 5, eos_token_id=eos, pad_token_id=0, **extra)
        assert torch.equal(out.sequences, plain)


def test_criteria_stop_each_row_by_itself(pair):
    class After(StoppingCriteria):
        """Ends a text whose last token is divisible by three."""

        def __call__(self, input_ids, scores, **kwargs):
            return input_ids[:, -1] % 3 == 0

    texts = prompts(4, seed=23)
    out = batched(pair, texts, Always(False), 6, stopping_criteria=StoppingCriteriaList([After()]))
    width = max(t.shape[1] for t in texts)
    for row, text in enumerate(texts):
        alone = pair.judged(text, Always(False), LENGTH, 6, stopping_criteria=StoppingCriteriaList([After()]))
        expected = alone.sequences[0, text.shape[1] :].tolist()
        assert out.sequences[row, width : width + len(expected)].tolist() == expected
        assert set(out.sequences[row, width + len(expected) :].tolist()) <= {0}


def test_sampled_batches_and_return_sequences(pair):
    text = prompts(1, seed=24)[0]
    out = batched(pair, [text], Always(False), 4, do_sample=True, num_return_sequences=5, top_k=20)
    assert out.sequences.shape[0] == 5
    assert len({tuple(row) for row in out.sequences.tolist()}) > 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"output_scores": True}, "one sequence at a time"),
        ({"assistant_model": None, "prompt_lookup_num_tokens": 3}, "several sequences"),
        ({"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]), "input_ids": torch.ones(2, 3).long()}, "left"),
    ],
)
def test_what_a_batch_cannot_do_is_refused(pair, kwargs, message):
    call = {**ragged(prompts(2, seed=25)), "assistant_model": pair.draft, "judge": Always(False), **kwargs}
    with pytest.raises(ValueError, match=message):
        pair.target.generate(**call, max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
