"""The cached loop against the slow reference, for every rule and feature: tokens, sources, counts, replacements."""

import numpy as np
import pytest
import reference
import torch
from tiny import FAMILIES, VOCAB_SIZE, build_judge, prompts

from hf_selfjudge import never_relax
from hf_selfjudge.config import FEATURES, MODES
from hf_selfjudge.rules import RULES, AllOf, AnyOf, TopK, parse_rule

SPECS = {
    "exact": reference.exact,
    "rejection": reference.exact,  # a greedy block carries no randomness
    "topk": reference.top_k(),
    "topk:1": reference.top_k(1),
    "topk:4": reference.top_k(4),
    "floor": reference.floor(),
    "floor:0.2": reference.floor(0.2),
    "margin": reference.margin(),
    "margin:0.6": reference.margin(0.6),
    "margin:0.15:4": reference.margin(0.15, 4),
    "typical": reference.typical(),
    "typical:0.3:0.8": reference.typical(0.3, 0.8),
    "kl": reference.divergence(),
    "kl:0.02": reference.divergence(0.02),
    "reverse-kl": reference.divergence(reverse=True),
    "reverse-kl:0.02": reference.divergence(0.02, reverse=True),
    "ensemble": reference.ensemble(),
    "ensemble:0.3": reference.ensemble(0.3),
    "fly": reference.fly(),
    "fly:0.1:1": reference.fly(0.1, 1),
    "fly:0.6:2:4": reference.fly(0.6, 2, 4),
}
COMPARED = ("llama", "mistral", "gemma3")
COUNTS = ("cycles", "drafted", "matched", "judged_in", "rejected", "discarded", "bonus")


def check(pair, judge, decide, mode="two-stage", gamma=5, length=13, seeds=(0, 1), eos=None, process=None, **kwargs):
    """Decode both ways; returns the sum of the statistics."""
    total = None
    for seed in seeds:
        prompt = prompts(1, seed=seed)[0]
        plain = {} if process is None else {"process": process}
        slow = pair.reference.decode(prompt[0].tolist(), decide, mode, gamma, length, (eos,) if eos else (), **plain)
        fast = pair.judged(prompt, judge, length, gamma, judge_mode=mode, eos_token_id=eos, **kwargs)
        stats = fast.judge_stats
        assert fast.sequences[0, prompt.shape[1] :].tolist() == slow.tokens
        assert [source.value for source in stats.sources] == slow.sources
        assert {name: getattr(stats, name) for name in COUNTS} == {name: getattr(slow, name) for name in COUNTS}
        assert [(r.position, r.target_token, r.draft_token) for r in stats.replacements] == slow.replacements
        check_invariants(stats, len(slow.tokens))
        total = stats if total is None else total + stats
    check_invariants(total, total.new_tokens)
    return total


def check_invariants(stats, new_tokens):
    assert stats.drafted == stats.matched + stats.judged_in + stats.rejected + stats.discarded
    assert stats.new_tokens == new_tokens == len(stats.sources)
    assert stats.accepted == stats.matched + stats.judged_in == sum(stats.accepted_by_position)
    assert stats.drafted == sum(stats.drafted_by_position)
    assert stats.judged_in == len(stats.replacements)
    assert all(a <= d for a, d in zip(stats.accepted_by_position, stats.drafted_by_position, strict=True))
    assert stats.seconds["total"] >= sum(stats.seconds[phase] for phase in ("draft", "target", "judge")) > 0


def test_every_rule_is_compared():
    assert {spec.split(":")[0] for spec in SPECS} == set(RULES)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("family", COMPARED)
def test_rules_equal_the_reference(loose_pairs, family, spec):
    judge_only = check(loose_pairs[family], parse_rule(spec), SPECS[spec], "judge-only", seeds=(2,))
    two_stage = check(loose_pairs[family], spec, SPECS[spec], "two-stage", seeds=(0, 1), gamma=7, length=10)
    if spec.startswith(("exact", "rejection", "topk:1")):
        assert two_stage.judged_in == judge_only.judged_in == 0
    else:
        assert two_stage.judged_in > 0 or two_stage.rejected > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_relaxing_rule_equals_the_reference_on_every_family(loose_pairs, family):
    assert check(loose_pairs[family], "topk:3", reference.top_k(3), gamma=4, length=20).judged_in > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", COMPARED)
def test_combined_and_restricted_rules_equal_the_reference(loose_pairs, family, mode):
    top, low = reference.top_k(4), reference.floor(0.1)
    protected = set(range(0, VOCAB_SIZE, 2))
    for judge, decide in (
        (AnyOf((TopK(2), parse_rule("floor:0.1"))), reference.any_of(reference.top_k(2), low)),
        (AllOf((TopK(4), parse_rule("floor:0.1"))), reference.all_of(top, low)),
        (TopK(4) & parse_rule("kl:0.3") | parse_rule("exact"), reference.any_of(
            reference.all_of(top, reference.divergence(0.3)), reference.exact
        )),
        (never_relax("topk:4", protected), reference.protecting(top, protected)),
    ):  # fmt: skip
        stats = check(loose_pairs[family], judge, decide, mode)
        assert (stats.judged_in == 0) == (mode == "alignment-only")


def layers(judge):
    return [(layer.weight.numpy(), layer.bias.numpy()) for layer in judge.layers]


def thetas(pair, judge, quantiles):
    """Thresholds in the gaps between probabilities that occur, so that each of them accepts some and rejects some."""
    view = [pair.reference.look(prompt[0].tolist(), 7) for prompt in prompts(4)]
    names, weights = judge.config.features, layers(judge)
    seen = sorted({round(reference.probability(v, j, names, weights), 5) for v in view for j in range(7)})
    return [(seen[at] + seen[at + 1]) / 2 for at in (int(q * (len(seen) - 1)) for q in quantiles)]


@pytest.mark.parametrize("names", [*((name,) for name in FEATURES), FEATURES], ids=lambda names: "+".join(names)[:20])
@pytest.mark.parametrize("family", COMPARED)
def test_judges_equal_the_reference(loose_pairs, family, names):
    pair, judge = loose_pairs[family], build_judge(names, seed=len(names[0]))
    accepted = []
    for theta, mode in zip(thetas(pair, judge, (0.2, 0.5, 0.8)), ("two-stage", "judge-only", "two-stage"), strict=True):
        decide = reference.judge(judge.config.features, layers(judge), theta)
        stats = check(pair, judge.with_threshold(theta), decide, mode, seeds=(0,), gamma=7)
        accepted.append(stats.judged_in)
        for found in stats.replacements:
            assert found.judge_probability > theta
    assert max(accepted) > 0


def test_a_judge_with_hidden_layers_equals_the_reference(loose_pairs):
    pair = loose_pairs["llama"]
    judge = build_judge(("hidden", "s_prefix", "kl_pq"), hidden_units=(8, 4))
    theta = thetas(pair, judge, (0.4,))[0]
    decide = reference.judge(judge.config.features, layers(judge), theta)
    stats = check(pair, judge.with_threshold(theta), decide, seeds=range(4))
    assert stats.judged_in > 0
    assert stats.rejected > 0


@pytest.mark.parametrize("seed", range(4))
def test_end_of_text_equals_the_reference(loose_pairs, seed):
    """Every token of a response in turn ends it: drafted, corrected or bonus, anywhere in a block."""
    pair, decide = loose_pairs["llama"], reference.top_k(3)
    response = pair.reference.decode(prompts(1, seed=seed)[0][0].tolist(), decide, gamma=6, max_new_tokens=14)
    for eos in response.tokens[1:]:
        stats = check(pair, "topk:3", decide, gamma=6, length=14, seeds=(seed,), eos=eos)
        assert stats.new_tokens <= response.tokens.index(eos) + 1


@pytest.mark.parametrize("judge", ["rule", "judge"])
def test_rules_read_processed_scores_and_judges_raw_logits(loose_pairs, judge):
    pair = loose_pairs["llama"]

    def process(text, row):
        seen = sorted(set(text))
        row[seen] = np.where(row[seen] < 0, row[seen] * np.float32(1.6), row[seen] / np.float32(1.6))
        row[[5, 9, 50]] = -np.inf
        return row

    if judge == "rule":
        given, decide = parse_rule("floor:0.05") | parse_rule("kl:0.2"), reference.any_of(
            reference.floor(0.05), reference.divergence(0.2)
        )  # fmt: skip
    else:
        given = build_judge(("log_p", "rank", "margin", "kl_pq"))
        theta = thetas(pair, given, (0.5,))[0]
        given, decide = given.with_threshold(theta), reference.judge(given.config.features, layers(given), theta)
    stats = check(
        pair, given, decide, seeds=range(6), process=process, repetition_penalty=1.6, suppress_tokens=[5, 9, 50]
    )
    assert stats.judged_in > 0
    assert {5, 9, 50}.isdisjoint(r.draft_token for r in stats.replacements)


def test_replacements_carry_the_targets_probability(pair):
    prompt = prompts(1)[0]
    out = pair.judged(prompt, "topk:5", 24, output_scores=True)
    assert out.judge_stats.replacements
    for found in out.judge_stats.replacements:
        p = out.scores[found.position][0].softmax(-1)
        assert found.target_probability == pytest.approx(float(p[found.draft_token]), rel=1e-5)
        assert found.target_token == int(p.argmax())
        assert found.judge_probability is None
        assert int(out.sequences[0, prompt.shape[1] + found.position]) == found.draft_token


def test_two_calls_do_not_disturb_each_other(pair):
    one, two = prompts(2, seed=5)
    first = pair.judged(one, "topk:3", 16).sequences
    pair.judged(two, "topk:3", 16)
    assert torch.equal(first, pair.judged(one, "topk:3", 16).sequences)
