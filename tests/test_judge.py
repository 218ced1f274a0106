"""The judge's arithmetic, its folder, and everything that can be wrong with one."""

import json
import pickle
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import build_judge

from hf_selfjudge import JudgeConfig, SelfJudgeVerifier
from hf_selfjudge import judge as judge_module
from hf_selfjudge.config import FEATURES
from hf_selfjudge.features import Block, judge_features
from hf_selfjudge.files import atomic_path, write_text

WIDTH = 6


def small_judge(**config):
    settings = {"thresholds": {"f1": 0.4, "recall": 0.7}, "default_threshold": "f1"} | config
    return build_judge(("hidden", "s_prefix"), hidden_size=WIDTH, **settings)


def block(gamma=4, vocab=9):
    return Block(
        torch.randint(0, vocab, (2, gamma)),
        torch.randn(2, gamma + 1, vocab),
        torch.randn(2, gamma + 1, WIDTH),
        torch.randn(2, gamma, vocab),
    )


def same_weights(one, two):
    a, b = one.state_dict(), two.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def folder(tmp_path):
    small_judge().save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


@pytest.mark.parametrize("hidden_units", [(), (5,), (7, 3)])
def test_save_and_load_give_the_same_bits(tmp_path, hidden_units):
    judge = build_judge(FEATURES, hidden_size=WIDTH, hidden_units=hidden_units)
    judge.save_pretrained(tmp_path)
    loaded = SelfJudgeVerifier.from_pretrained(tmp_path)
    given = block()
    assert same_weights(judge, loaded)
    assert loaded.config == judge.config
    assert torch.equal(judge(given), loaded(given))
    assert not loaded.training
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_linear_judge_is_a_logistic_regression():
    judge = small_judge()
    weight, bias = torch.randn(WIDTH + 1), 0.3
    judge.set_weights(weight, bias)
    given = block()
    expected = torch.sigmoid(judge_features(given, ("hidden", "s_prefix")) @ weight + bias)
    torch.testing.assert_close(judge(given), expected)
    assert judge(given).shape == (2, 4)


@pytest.mark.parametrize("weight", [torch.ones(WIDTH), torch.full((WIDTH + 1,), float("nan"))])
def test_set_weights_refuses(weight):
    with pytest.raises(ValueError, match=r"weights were given|NaN or infinite"):
        small_judge().set_weights(weight, 0.0)
    with pytest.raises(ValueError, match="linear judges"):
        small_judge(hidden_units=(3,)).set_weights(torch.ones(WIDTH + 1), 0.0)


def test_with_threshold_is_a_copy_that_shares_the_weights():
    judge = small_judge()
    other = judge.with_threshold("recall")
    assert (judge.threshold, other.threshold, judge.with_threshold(0.25).threshold) == (0.4, 0.7, 0.25)
    assert other.layers[0].weight is judge.layers[0].weight
    assert other.config is judge.config
    for wrong in ("youden", -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="threshold"):
            judge.with_threshold(wrong)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        judge.threshold = 7


def test_from_pretrained_with_a_threshold(folder):
    assert SelfJudgeVerifier.from_pretrained(folder).threshold == 0.4
    assert SelfJudgeVerifier.from_pretrained(str(folder), threshold="recall").threshold == 0.7
    assert SelfJudgeVerifier.from_pretrained(folder, threshold=0.1).threshold == 0.1
    with pytest.raises(ValueError, match="no threshold named"):
        SelfJudgeVerifier.from_pretrained(folder, threshold="best")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        SelfJudgeVerifier.from_pretrained(folder)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError)):
        SelfJudgeVerifier.from_pretrained(tmp_path / "nowhere")


def test_a_pickle_beside_the_weights_is_never_opened(folder):
    class Bomb:
        def __reduce__(self):
            return subprocess.check_call, (["touch", str(folder / "exploded")],)

    for name in ("pytorch_model.bin", "model.pkl", "judge.joblib"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    SelfJudgeVerifier.from_pretrained(folder)
    assert not (folder / "exploded").exists()
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        SelfJudgeVerifier.from_pretrained(folder)
    assert not (folder / "exploded").exists()


def rewrite(folder, change):
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update({"layers.0.weight": torch.ones(1, WIDTH)}), "config.json asks for"),
        (lambda s: s.update({"layers.0.weight": torch.ones(WIDTH + 1, 1)}), "config.json asks for"),
        (lambda s: s.pop("layers.0.bias"), "config.json asks for"),
        (lambda s: s.update({"extra": torch.ones(1)}), "config.json asks for"),
        (lambda s: s["layers.0.weight"].fill_(float("nan")), "NaN or infinite"),
        (lambda s: s["layers.0.bias"].fill_(float("-inf")), "NaN or infinite"),
        (lambda s: s.update({"layers.0.bias": torch.ones(1, dtype=torch.int64)}), "not floating-point"),
    ],
)
def test_weights_that_are_not_this_judges(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        SelfJudgeVerifier.from_pretrained(folder)


def test_weights_that_overflow_float32(folder):
    rewrite(folder, lambda s: s.update({"layers.0.bias": torch.full((1,), 1e300, dtype=torch.float64)}))
    with pytest.raises(ValueError, match="NaN or infinite"):
        SelfJudgeVerifier.from_pretrained(folder)


def test_half_precision_weights_are_read_as_float32(folder):
    rewrite(folder, lambda s: s.update({"layers.0.weight": s["layers.0.weight"].half()}))
    loaded = SelfJudgeVerifier.from_pretrained(folder)
    assert all(value.dtype == torch.float32 for value in loaded.state_dict().values())
    assert torch.equal(loaded.layers[0].weight, small_judge().layers[0].weight.half().float())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("sizes", [{"hidden_size": WIDTH + 1}, {"hidden_units": [1 << 20, 1 << 20, 1 << 20]}])
def test_a_config_of_another_size(folder, sizes):
    """Refused by comparing shapes: the second would need terabytes."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    with pytest.raises(ValueError, match=r"config\.json asks for"):
        SelfJudgeVerifier.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_every_truncation_is_refused(folder, name):
    path = folder / name
    content = path.read_bytes()
    content = content.rstrip() if name == "config.json" else content
    for size in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"\w"):
            SelfJudgeVerifier.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_flipped_bytes_are_refused_or_give_a_finite_judge(folder, name):
    path = folder / name
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(5)
    refused = 0
    for _ in range(600):
        at, bit = (int(torch.randint(0, n, (1,), generator=generator)) for n in (len(content), 8))
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        try:
            judge = SelfJudgeVerifier.from_pretrained(folder)
        except (ValueError, FileNotFoundError):
            refused += 1
        else:
            assert all(torch.isfinite(value).all() for value in judge.state_dict().values())
            assert 0 <= judge.threshold <= 1
    assert 0 < refused < 600


def test_huge_header_lengths_are_refused(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for length in (0, 2**31, 2**63, 2**64 - 1, len(content) * 2):
        path.write_bytes(length.to_bytes(8, "little") + content[8:])
        with pytest.raises(ValueError, match="not a readable safetensors file"):
            SelfJudgeVerifier.from_pretrained(folder)


def test_a_judge_with_bad_weights_is_not_saved(tmp_path):
    judge = small_judge()
    judge.layers[0].bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        judge.save_pretrained(tmp_path / "judge")
    assert not (tmp_path / "judge" / "model.safetensors").exists()


@pytest.mark.parametrize("failing", ["weights", "config"])
def test_a_failed_save_keeps_the_old_folder(folder, monkeypatch, failing):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def break_off(*args, **kwargs):
        raise OSError("no space left on device")

    if failing == "weights":
        monkeypatch.setattr(judge_module, "save_file", break_off)
    else:
        monkeypatch.setattr(JudgeConfig, "to_json", break_off)
    with pytest.raises(OSError, match="no space"):
        build_judge(("hidden", "s_prefix"), seed=9, hidden_size=WIDTH).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(("threshold", "name"), [("recall", "recall"), (0.7, "recall"), (0.9, "chosen"), (0.4, "f1")])
def test_the_threshold_in_use_is_saved_as_the_default(folder, threshold, name):
    SelfJudgeVerifier.from_pretrained(folder, threshold=threshold).save_pretrained(folder)
    again = SelfJudgeVerifier.from_pretrained(folder)
    assert again.threshold == again.config.thresholds[name]
    assert again.config.default_threshold == name
    assert {"f1": 0.4, "recall": 0.7}.items() <= again.config.thresholds.items()
    assert f"| `{name}` (default) |" in (folder / "README.md").read_text()


def test_saving_again_keeps_a_hand_written_card(folder):
    (folder / "README.md").write_text("mine")
    other = build_judge(("hidden",), hidden_size=WIDTH)
    other.save_pretrained(folder)
    assert (folder / "README.md").read_text() == "mine"
    assert same_weights(SelfJudgeVerifier.from_pretrained(folder), other)


def test_atomic_files(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "é")
    assert path.read_text(encoding="utf-8") == "é"
    assert path.stat().st_mode & 0o777 == 0o644

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text(encoding="utf-8") == "é"
    assert list(path.parent.iterdir()) == [path]


def test_a_judge_shows_what_it_reads():
    assert "features=hidden+s_prefix, threshold=0.4" in repr(small_judge())
    assert isinstance(small_judge().config, JudgeConfig)
