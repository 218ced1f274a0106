"""Respond, label, fit and calibrate, each against its definition."""

import pytest
import torch
from tiny import VOCAB_SIZE, build_model

from hf_selfjudge.pipeline.calibrate import calibrate
from hf_selfjudge.pipeline.fit import C_GRID, fit, split_by_prompt
from hf_selfjudge.pipeline.label import calibrate_tau, finish, label
from hf_selfjudge.pipeline.records import Mismatches
from hf_selfjudge.pipeline.respond import respond


@pytest.fixture(scope="module")
def target():
    model = build_model("llama")
    model.generation_config.eos_token_id = 7
    return model


@pytest.fixture(scope="module")
def responses(target):
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(8, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (4, 11, 7, 5, 9)]
    return sorted(respond(target, prompts, max_new_tokens=24, batch_size=2), key=lambda response: response.prompt_id)


def greedy(model, ids: list[int], count: int, eos: int | None = None) -> list[int]:
    """Cache-free greedy decoding."""
    new: list[int] = []
    while len(new) < count and (not new or new[-1] != eos):
        new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


def test_responses_are_the_targets_greedy_text(target, responses):
    assert [response.prompt_id for response in responses] == list(range(5))
    for response in responses:
        assert response.answer == greedy(target, response.prompt, 24, eos=7)


def test_responses_ignore_the_models_sampling_settings(target, responses):
    target.generation_config.repetition_penalty = 5.0
    try:
        again = list(respond(target, [responses[0].prompt], max_new_tokens=24))
    finally:
        target.generation_config.repetition_penalty = None
    assert again[0].answer == responses[0].answer


def test_finish_lets_the_target_write_on_after_the_substitution(target, responses):
    found = [Mismatches([0, 2, 3], [50, 51, 7]), Mismatches([1], [52])]
    finished = finish(target, responses[:2], found, max_new_tokens=6)
    assert [len(answers) for answers in finished] == [3, 1]
    assert finished[0][2] == [*responses[0].answer[:3], 7]  # the end-of-sequence token ends it
    start = [*responses[0].answer[:2], 51]
    assert finished[0][1] == start + greedy(target, responses[0].prompt + start, 6, eos=7)
    start = [*responses[1].answer[:1], 52]
    assert finished[1][0] == start + greedy(target, responses[1].prompt + start, 6, eos=7)


def test_tau_rejects_the_wanted_share():
    scores = torch.arange(100.0)
    tau = calibrate_tau(scores, reject=0.9)
    assert label(scores, tau).sum() == 10
    with pytest.raises(ValueError, match="share"):
        calibrate_tau(scores, reject=1.0)
    with pytest.raises(ValueError, match="tau"):
        calibrate_tau(scores[:0])


def test_split_keeps_prompts_whole_and_is_fixed_by_the_seed():
    prompt_ids = torch.arange(50).repeat_interleave(4)
    held_out = split_by_prompt(prompt_ids, 0.2, seed=1)
    assert held_out.sum() == 40
    assert all(len(set(held_out[prompt_ids == p].tolist())) == 1 for p in range(50))
    assert torch.equal(held_out, split_by_prompt(prompt_ids, 0.2, seed=1))
    assert not torch.equal(held_out, split_by_prompt(prompt_ids, 0.2, seed=2))


def labelled(rows: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of very different scale, one of them constant, and labels that depend on two of them."""
    features = torch.randn(rows, 5) * torch.tensor([1.0, 100.0, 0.01, 1.0, 0.0]) + torch.tensor(
        [0.0, 30.0, 0, 5.0, 2.0]
    )
    noise = 0.5 * torch.randn(rows)
    return features, (features[:, 0] + features[:, 2] * 100 + noise) > 0.3


def test_fit_finds_the_signal_and_folds_the_scaler():
    from sklearn.metrics import roc_auc_score

    features, labels = labelled()
    held_out = split_by_prompt(torch.arange(len(labels)), 0.25, seed=0)
    found = fit(features, labels, held_out)
    assert found.validation_auc > 0.95
    assert found.c in C_GRID
    probability = found.probability(features[held_out])
    assert roc_auc_score(labels[held_out], probability) == pytest.approx(found.validation_auc, abs=1e-6)
    youden = calibrate(probability, labels[held_out])["youden"]
    assert ((probability > youden) == labels[held_out]).float().mean() > 0.85


def test_fit_without_both_classes_is_refused():
    features, labels = labelled(40)
    held_out = torch.arange(40) % 4 == 0
    with pytest.raises(ValueError, match="unacceptable"):
        fit(features, torch.zeros_like(labels), held_out)


def test_thresholds_are_the_best_of_all_thetas():
    probability, labels = torch.rand(300), torch.rand(300) > 0.6
    probability = (probability + labels * 0.3).clamp(max=1)
    found = calibrate(probability, labels, recall=0.9)

    def outcome(theta: float) -> tuple[float, float, float, float]:
        accepted = probability > theta
        kept_good, kept_bad = (accepted & labels).sum().item(), (accepted & ~labels).sum().item()
        good, bad = labels.sum().item(), (~labels).sum().item()
        rejected = 300 - kept_good - kept_bad
        f1 = 2 * kept_good / (2 * kept_good + kept_bad + good - kept_good)
        return f1, kept_good / good - kept_bad / bad, (bad - kept_bad) / max(rejected, 1), 1 - kept_bad / bad

    grid = [outcome(theta / 1000) for theta in range(1000)]
    assert outcome(found["f1"])[0] >= max(f1 for f1, *_ in grid) - 1e-9
    assert outcome(found["youden"])[1] >= max(j for _, j, *_ in grid) - 1e-9
    assert outcome(found["recall"])[3] >= 0.9
    assert outcome(found["recall"])[2] >= max(p for _, _, p, r in grid if r >= 0.9) - 1e-9
