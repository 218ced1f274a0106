"""Whatever promises exact decoding must give plain `generate`'s tokens, one by one."""

import copy

import pytest
import torch
from tiny import FAMILIES, HIDDEN_SIZE, OTHER_FAMILIES, Always, build_judge, prompts

REJECTING = {
    "rule": lambda: {"judge": Always(False)},
    "theta=1": lambda: {"judge": build_judge(threshold=1.0)},
    "alignment-only": lambda: {"judge": Always(True), "judge_mode": "alignment-only"},
}
GAMMAS = (1, 3, 8, 20)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_settings_equal_plain_generate(pairs, family, gamma):
    pair, accepted, drafted = pairs[family], 0, 0
    for index, prompt in enumerate(prompts(20)):
        length = (8, 12, 22)[index % 3]
        setting = list(REJECTING)[(index + GAMMAS.index(gamma)) % 3]
        out = pair.judged(prompt, max_new_tokens=length, gamma=gamma, **REJECTING[setting]())
        assert torch.equal(out.sequences, pair.plain(prompt, length)), (index, setting)
        assert out.judge_stats.judged_in == 0
        accepted, drafted = accepted + out.judge_stats.accepted, drafted + out.judge_stats.drafted
    assert 0 < accepted < drafted  # a pair that always or never agrees would prove little


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_other_architectures_equal_plain_generate(pairs, family):
    pair, accepted, drafted = pairs[family], 0, 0
    for gamma, prompt in zip((1, 4, 7, 12), prompts(4, seed=1), strict=True):
        out = pair.judged(prompt, build_judge(threshold=1.0), max_new_tokens=20, gamma=gamma)
        assert torch.equal(out.sequences, pair.plain(prompt, 20))
        accepted, drafted = accepted + out.judge_stats.accepted, drafted + out.judge_stats.drafted
    assert 0 < accepted < drafted


@pytest.mark.parametrize(("gamma", "accepting"), [(3, "rule"), (8, "theta=0")])
@pytest.mark.parametrize("family", FAMILIES)
def test_accepting_all_gives_the_drafts_tokens_inside_each_block(pairs, family, gamma, accepting):
    pair = pairs[family]
    judge = Always(True) if accepting == "rule" else build_judge(("log_p_top",), threshold=0.0)
    for prompt in prompts(3, seed=2):
        out = pair.judged(prompt, judge, max_new_tokens=19, gamma=gamma)
        text, sources = prompt[0].tolist(), [source.value for source in out.judge_stats.sources]
        for position, token in enumerate(out.sequences[0, prompt.shape[1] :].tolist()):
            last_of_block = (position + 1) % (gamma + 1) == 0 or position == 18
            model = pair.target if last_of_block else pair.draft
            assert token == int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax())
            assert (sources[position] == "bonus") == last_of_block
            text.append(token)
        assert out.judge_stats.rejected == 0


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_decodes_and_judges(pair, dtype):
    target, draft = (copy.deepcopy(model).to(dtype) for model in (pair.target, pair.draft))
    prompt = prompts(1)[0]
    out = target.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        assistant_model=draft,
        judge=build_judge(("hidden", "log_p"), hidden_size=HIDDEN_SIZE).to(dtype),
        max_new_tokens=12,
        do_sample=False,
        num_assistant_tokens=4,
        return_dict_in_generate=True,
    )
    assert out.judge_stats.new_tokens == 12
    assert out.judge_stats.judged_in > 0
    assert out.judge_stats.judged_in == len(out.judge_stats.replacements)
