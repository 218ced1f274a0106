"""Packed scoring against one forward per substitution, in float32."""

import pytest
import torch
from tiny import build_model

from hf_selfjudge.features import Block, judge_features
from hf_selfjudge.pipeline.mine import mine
from hf_selfjudge.pipeline.records import Mismatches, Response, Substitutions
from hf_selfjudge.pipeline.score import ScoreSettings, score

FEATURES = ("hidden", "previous_hidden", "log_p", "s_prefix", "entropy", "log_q", "kl_pq")
LENGTHS = (0, 3, 20, 50)


@pytest.fixture(scope="module")
def responses() -> list[Response]:
    """Prompts and answers of unequal length, one answer of a single token."""
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 101, (count,), generator=generator).tolist()

    return [Response(index, draw(p), draw(a)) for index, (p, a) in enumerate([(5, 12), (9, 30), (3, 1)])]


@pytest.fixture(scope="module")
def mismatches(responses) -> list[Mismatches]:
    found = mine(build_model("llama", seed=9).float(), responses)
    assert found[0].positions[0] == 0  # the first and the last token are among them
    assert found[1].positions[-1] == 29
    return found


def log_probs(model, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    output = model(torch.tensor([ids]), output_hidden_states=True)
    return output.logits[0].log_softmax(-1), output.logits[0], output.hidden_states[-1][0]


def one_by_one(model, responses, mismatches, suffix: str, reduction: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, one substitution and one whole-text forward at a time."""
    scores, features = [], []
    for response, found in zip(responses, mismatches, strict=True):
        first, answer = len(response.prompt), response.answer
        original, logits, hidden = log_probs(model, response.prompt + answer)
        for row, (i, z) in enumerate(zip(found.positions, found.draft_tokens, strict=True)):
            changed, new_logits, new_hidden = log_probs(model, [*response.prompt, *answer[:i], z, *answer[i + 1 :]])
            at, by_length = first + i - 1, []
            for length in LENGTHS:
                s = original[at, z] - original[at, answer[i]]
                suffix_at = range(i + 1, min(i + length, len(answer) - 1) + 1)
                for j in suffix_at:
                    pair = [p[first + j - 1] for p in (changed, original)]
                    terms = [p[answer[j]] if suffix == "likelihood" else p.max() for p in pair]
                    s = s + terms[0] - terms[1]
                by_length.append(s / (len(suffix_at) + 1) if reduction == "mean" else s)
            scores.append(torch.stack(by_length))
            block = Block(
                torch.tensor([[z]]),
                torch.stack([logits[at], new_logits[at + 1]])[None],
                torch.stack([hidden[at], new_hidden[at + 1]])[None],
                found.draft_logits[row][None, None],
            )
            features.append(judge_features(block, FEATURES)[0, 0])
    return torch.stack(scores), torch.stack(features)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"])
@pytest.mark.parametrize("max_tokens", [10, 60, 8192])
def test_packed_scores_equal_one_by_one(family, max_tokens, responses, mismatches):
    model = build_model(family).float()
    settings = ScoreSettings(lengths=LENGTHS, features=FEATURES)
    found = score(model, responses, mismatches, settings, max_tokens)
    scores, features = one_by_one(model, responses, mismatches, "likelihood", "sum")
    torch.testing.assert_close(found.scores, scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.features, features, atol=1e-4, rtol=0)
    assert found.prompt_ids.tolist() == [i for i, m in enumerate(mismatches) for _ in m.positions]
    assert found.positions.tolist() == [p for m in mismatches for p in m.positions]
    assert found.draft_tokens.tolist() == [z for m in mismatches for z in m.draft_tokens]


@pytest.mark.parametrize(("suffix", "reduction"), [("confidence", "sum"), ("likelihood", "mean")])
def test_other_scores(suffix, reduction, responses, mismatches):
    model = build_model("llama").float()
    settings = ScoreSettings(lengths=LENGTHS, suffix=suffix, reduction=reduction, features=("s_prefix",))
    found = score(model, responses, mismatches, settings)
    expected, _ = one_by_one(model, responses, mismatches, suffix, reduction)
    torch.testing.assert_close(found.scores, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", [{"lengths": ()}, {"lengths": (-1,)}, {"suffix": "x"}, {"reduction": "max"}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        ScoreSettings(**settings)


def test_attention_that_takes_no_masks_is_refused(responses, mismatches):
    model = build_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="sdpa"):
        score(model, responses, mismatches, ScoreSettings())


def test_nothing_to_score_is_an_error():
    with pytest.raises(ValueError, match="agrees"):
        Substitutions.join([])
