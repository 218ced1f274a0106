"""CUDA graphs and GPU kernels: the same tokens as the plain loop in float32. Needs a GPU."""

import pytest
import torch
from tiny import FAMILIES, build_draft, build_judge, build_model, prompts

from hf_selfjudge.decoding.continuation import Trunks, continue_texts
from hf_selfjudge.engine import forward as engine
from hf_selfjudge.engine import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LENGTH = 24


@pytest.fixture(scope="module", params=FAMILIES)
def gpu_pair(request):
    target = build_model(request.param)
    draft = build_draft(target, 0.1)
    return target.float().cuda(), draft.float().cuda()


def decode(pair, ids, mask, judge, gamma, cache, **options):
    return pair[0].generate(
        input_ids=ids,
        attention_mask=mask,
        assistant_model=pair[1],
        judge=judge,
        num_assistant_tokens=gamma,
        cache_implementation=cache,
        do_sample=False,
        max_new_tokens=LENGTH,
        return_dict_in_generate=True,
        **options,
    )


def test_graphs_equal_the_dynamic_loop(gpu_pair, monkeypatch):
    texts = prompts(5, seed=22)
    width = max(text.shape[1] for text in texts)
    ids = torch.cat([torch.nn.functional.pad(t, (width - t.shape[1], 0)) for t in texts]).cuda()
    mask = torch.stack([(torch.arange(width) >= width - t.shape[1]).long() for t in texts]).cuda()
    judge = build_judge(threshold=0.5).cuda()
    for gamma, rows in ((1, 1), (5, 1), (4, 5), (9, 5), (4, 5)):
        expected = decode(gpu_pair, ids[:rows], mask[:rows], judge, gamma, "dynamic")
        found = decode(gpu_pair, ids[:rows], mask[:rows], judge, gamma, None)
        assert torch.equal(found.sequences, expected.sequences)
        assert found.judge_stats.sources == expected.judge_stats.sources
    refilled = decode(gpu_pair, ids, mask, judge, 4, None, judge_rows_at_once=2)
    assert torch.equal(refilled.sequences, expected.sequences)
    monkeypatch.setattr("hf_selfjudge.verification.LARGE", 0)  # rules are asked at mismatches only
    monkeypatch.setattr("hf_selfjudge.features.LARGE", 0)
    found = decode(gpu_pair, ids, mask, judge, 4, None)
    assert torch.equal(found.sequences, decode(gpu_pair, ids, mask, judge, 4, "dynamic").sequences)
    assert torch.equal(found.sequences, expected.sequences)
    (kept,) = engine._idle[gpu_pair[0]]
    assert kept._graphs  # graphs were used
    assert kept._use_graphs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("shape", [(1, 1, 8, 2, 64), (3, 7, 12, 3, 80), (2, 21, 32, 8, 128), (5, 2, 4, 4, 32)])
def test_attention_kernel(dtype, window, shape):
    rows, count, heads, kv_heads, dim = shape
    torch.manual_seed(1)
    q = torch.randn(rows, count, heads, dim, device="cuda").to(dtype)
    keys, values = (torch.randn(rows, kv_heads, 300, dim, device="cuda").to(dtype) for _ in range(2))
    positions = torch.randint(0, 300 - count, (rows, 1), device="cuda") + torch.arange(count, device="cuda")
    found = kernels.attend(q, keys, values, positions, dim**-0.5, window)
    wide = [tensor.double().cpu() for tensor in (q, keys, values)]
    expected = kernels.attend(*wide, positions.cpu(), dim**-0.5, window)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double().cpu(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [101, 4096, 50_001])
def test_token_kernels(dtype, vocab):
    torch.manual_seed(2)
    scores = torch.randn(3, 6, vocab, device="cuda").to(dtype)
    scores[0, 1, 7:] = float("-inf")
    tokens = torch.randint(0, vocab, (3, 5), device="cuda")
    log_p, best = kernels.token_statistics(scores[:, :-1], tokens)
    wide = scores[:, :-1].double()
    expected = wide.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(log_p.double(), expected, atol=1e-4, rtol=1e-5)
    assert torch.equal(wide.gather(-1, best[..., None])[..., 0], wide.amax(-1))
    chosen = kernels.greedy(scores[:, 0])
    assert torch.equal(scores[:, 0].gather(-1, chosen)[:, 0], scores[:, 0].amax(-1))


def test_no_memory_grows_over_calls(gpu_pair):
    ids = torch.randint(3, 100, (1, 9), device="cuda")
    mask = torch.ones_like(ids)
    for _ in range(5):
        decode(gpu_pair, ids, mask, "exact", 4, None)
    before = torch.cuda.memory_allocated()
    for _ in range(200 if gpu_pair[0].config.model_type == "llama" else 20):
        decode(gpu_pair, ids, mask, "exact", 4, None)
    assert torch.cuda.memory_allocated() <= before


def test_continuation_equals_generate(gpu_pair):
    target = gpu_pair[0]
    texts = [text[0].tolist() for text in prompts(5, seed=8)]

    def plain(text, room):
        ids = torch.tensor([text]).cuda()
        out = target.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, do_sample=False)
        return out[0, len(text) :].tolist()

    whole = [text + plain(text, 20) for text in texts]
    cuts = [(number, cut) for number in range(5) for cut in (3, len(texts[number]) + 9)]
    branches = [[*whole[number][:cut], 7] for number, cut in cuts]
    expected = [plain(text, 19) for text in branches]
    trunks = Trunks(whole, [number for number, _ in cuts])
    for rows in (3, 16):
        assert continue_texts(target, branches, [19] * len(branches), [], rows, trunks) == expected
