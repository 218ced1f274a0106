"""Log sums and best log-probabilities of rows against float64."""

import pytest
import torch

from hf_selfjudge.engine import log_probs

PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def hard_rows(vocab: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that are far from 0, flat, peaked, and partly ruled out."""
    rows = torch.randn(7, vocab, generator=torch.Generator().manual_seed(vocab)) * 6
    rows[1] -= 300
    rows[2] = 2.5
    rows[3, vocab // 2] = 200
    rows[4, :-1] = float("-inf")  # only the last token is possible
    rows[5, : vocab - vocab // 3] = float("-inf")
    rows[6, -1] = 90  # the largest in the last place
    return rows.to(dtype)


def check(logits: torch.Tensor) -> None:
    log_sums, best = log_probs.normalise(logits)
    expected = logits.double().logsumexp(-1)
    assert log_sums.dtype == best.dtype == torch.float32
    torch.testing.assert_close(log_sums.double(), expected, rtol=2e-7, atol=1e-6)
    # closer to 0 than the log sum is, and not a difference of two large numbers
    torch.testing.assert_close(best.double(), logits.double().amax(-1) - expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [*PRECISIONS, torch.float64])
@pytest.mark.parametrize("chunk", [1, 300, 1 << 24])
def test_rows_equal_float64(dtype, chunk, monkeypatch):
    monkeypatch.setattr(log_probs, "CHUNK", chunk)
    check(hard_rows(131, dtype))


def test_no_rows():
    log_sums, best = log_probs.normalise(torch.empty((0, 9)))
    assert log_sums.shape == best.shape == (0,)


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("vocab", [1, 131, 4096, 4097, 128256])
def test_the_kernel_equals_float64(dtype, vocab):
    assert log_probs.gpu is not None
    rows = hard_rows(vocab, dtype).cuda() if vocab > 1 else torch.tensor([[3.0], [-7.0]], dtype=dtype).cuda()
    check(rows)
    check(rows.t().contiguous().t())  # another order in memory
    check(torch.nn.functional.pad(rows, (3, 2), value=50.0)[:, 3:-2])  # rows inside wider ones
    assert log_probs.normalise(rows[:0])[0].shape == (0,)


@pytest.mark.gpu
@cuda
def test_the_kernel_reaches_rows_behind_two_billion_logits():
    logits = torch.zeros((17000, 128256), dtype=torch.bfloat16, device="cuda")
    logits[-1, -1] = 20
    log_sums, best = log_probs.normalise(logits)
    torch.testing.assert_close(log_sums[-1].double(), logits[-1].double().logsumexp(-1), rtol=0, atol=1e-5)
    assert float(best[0]) == pytest.approx(-torch.tensor(128256.0).log().item(), abs=1e-5)
