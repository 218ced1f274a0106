"""The loader against thousands of broken and malicious folders: a ValueError or OSError, or a sound judge."""

import copy
import json
import pickle
import random
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import build_judge

from hf_selfjudge import SelfJudgeVerifier

FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
    "socket.connect",
)
VALUES = [
    None, True, False, 0, -1, 1, 1 << 20, 1 << 64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x",
    "\ud800", "../../../etc/passwd", "hidden", "\x00", [], {}, [[]], [None], ["hidden"], ["hidden", "hidden"],
    {"id": "x"}, {"x": 1}, [1 << 20] * 40, "x" * 70000, ["ahead_known"] * 500, {"f1": 2}, {"": 0.5}, {"f1": "0.4"},
    [{}], [["hidden"]],
]  # fmt: skip
_watched: list[str] | None = None


def _watch(event, _arguments):
    if _watched is not None and event in FORBIDDEN:
        _watched.append(event)


@pytest.fixture
def watched():
    """Everything in a test that starts a process, unpickles a name or opens a connection."""
    global _watched
    if not getattr(_watch, "installed", False):
        sys.addaudithook(_watch)  # cannot be removed, but sleeps between tests
        _watch.installed = True
    _watched = []
    yield _watched
    _watched = None


@pytest.fixture
def folder(tmp_path):
    settings = {"thresholds": {"f1": 0.4, "recall": 0.7}, "default_threshold": "f1", "labels": {"tau": -1.5}}
    build_judge(("hidden", "s_prefix"), hidden_size=6, **settings).save_pretrained(tmp_path)
    return tmp_path


class Bomb:
    """Says where it went off."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return subprocess.check_call, (["touch", str(self.path)],)


def attempt(folder) -> bool:
    """Whether the folder loads. Only errors that users are told to expect may come out, each with a short message."""
    try:
        judge = SelfJudgeVerifier.from_pretrained(folder)
    except (ValueError, OSError) as error:
        message = str(error)
    else:
        _is_sound(judge)
        return True
    assert 0 < len(message) < 5000
    return False


def _is_sound(judge):
    assert all(torch.isfinite(value).all() for value in judge.state_dict().values())
    assert 0 <= judge.threshold <= 1


def change(value, randomly):
    """A JSON value with something in it replaced, dropped, doubled or added."""
    value = copy.deepcopy(value)
    at, parent, key = value, None, None
    while isinstance(at, dict | list) and at and (parent is None or randomly.random() < 0.6):
        parent, key = at, randomly.choice(list(at) if isinstance(at, dict) else range(len(at)))
        at = at[key]
    kind = randomly.random()
    if kind < 0.6:
        parent[key] = randomly.choice(VALUES)
    elif kind < 0.75:
        del parent[key]
    elif isinstance(parent, dict):
        parent[randomly.choice(["x", "features", "id", "__class__", "f1", ""])] = randomly.choice(VALUES)
    else:
        parent.extend(parent[:1] * randomly.choice([1, 3, 1000]))
    return value


def garble(data, randomly):
    """Bytes with pieces flipped, dropped, doubled or put in."""
    data = bytearray(data)
    for _ in range(randomly.choice([1, 1, 2, 5])):
        at = randomly.randrange(len(data) + 1)
        piece = randomly.choice(
            [b"\x00", b"\xff" * 8, b'"', b"{" * 300, b"[" * 2000, b"9" * 5000, b"\x80", b"-", b"1e999"]
        )
        kind = randomly.random()
        if kind < 0.4 and at < len(data):
            data[at] = randomly.randrange(256)
        elif kind < 0.6:
            del data[at : at + randomly.choice([1, 8, 64])]
        elif kind < 0.8:
            data[at:at] = piece
        else:
            data[at:at] = data[: randomly.choice([1, 16, 200])]
    return bytes(data)


def test_mutated_configs(folder, watched):
    randomly, path = random.Random(1), folder / "config.json"
    text = path.read_text()
    good = json.loads(text)
    loaded = 0
    for count in range(1100):
        if count % 2:
            value = good
            for _ in range(randomly.choice([1, 1, 2, 4])):
                value = change(value, randomly) or good
            path.write_text(json.dumps(value))
        else:
            path.write_bytes(garble(text.encode(), randomly))
        loaded += attempt(folder)
    assert 0 < loaded < 700
    assert watched == []


def test_mutated_weights(folder, watched):
    randomly, path = random.Random(2), folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    numbers = [-1, 0, 1, 4, 28, 32, 1 << 31, 1 << 63, 1 << 64, 10**30, 1.5, None, "0", True, []]
    loaded = 0
    for count in range(1100):
        if count % 2:
            found = copy.deepcopy(header)
            entry = found[randomly.choice([name for name in found if name != "__metadata__"])]
            kind = randomly.choice(["dtype", "shape", "data_offsets", "name", "metadata"])
            if kind == "dtype":
                entry["dtype"] = randomly.choice(["F64", "F16", "I64", "BOOL", "F8_E4M3", "U8", "", "F33", 3])
            elif kind == "name":
                found[randomly.choice(["../../x", "layers.0.bias", "layers.1.weight", "", "__class__"])] = entry
            elif kind == "metadata":
                found["__metadata__"] = randomly.choice(VALUES)
            else:
                entry[kind] = [randomly.choice(numbers) for _ in range(randomly.choice([0, 1, 2, 2, 3, 60]))]
            text = json.dumps(found).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + body)
        else:
            path.write_bytes(garble(data, randomly))
        loaded += attempt(folder)
    assert 0 < loaded < 700
    assert watched == []


def test_nesting_at_the_edge_of_the_stack(folder, watched):
    path = folder / "config.json"
    good = path.read_text()
    for field in ("features", "hidden_units", "thresholds", "target", "labels", "format_version", "default_threshold"):
        value = json.dumps(json.loads(good)[field]) if field != "target" else "null"
        for depth in (*range(880, 1000, 6), 5000):
            nested = "[" * depth + "]" * depth
            path.write_text(
                json.dumps({**json.loads(good), field: None}).replace(f'"{field}": null', f'"{field}": {nested}')
            )
            assert not attempt(folder)
        path.write_text(
            json.dumps({**json.loads(good), field: None}).replace(f'"{field}": null', f'"{field}": {value}')
        )
        assert attempt(folder)


def test_hostile_folders(folder, watched, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    good = {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}
    for name in ("pytorch_model.bin", "model.pkl", "model.pt", "__init__.py", "modeling.py", "custom_generate.py"):
        (folder / name).write_bytes(pickle.dumps(Bomb(outside / "exploded")))
    assert attempt(folder)
    for name, data in good.items():
        path = folder / name
        for content in (pickle.dumps(Bomb(outside / "exploded")), b"", b"\x00" * 4096, b"[" * 100_000):
            path.write_bytes(content)
            assert not attempt(folder)
        path.unlink()
        path.mkdir()
        assert not attempt(folder)
        path.rmdir()
        (outside / name).write_bytes(data)
        path.symlink_to(outside / name)
        with pytest.raises(ValueError, match="link out of the judge's folder"):
            SelfJudgeVerifier.from_pretrained(folder)
        path.unlink()
        path.symlink_to(path)
        assert not attempt(folder)
        path.unlink()
        path.write_bytes(data)
    assert attempt(folder)
    assert not (outside / "exploded").exists()
    assert watched == []


def test_huge_files_are_refused_unread(folder):
    for name, size in (("config.json", 1 << 34), ("model.safetensors", 1 << 40)):
        data = (folder / name).read_bytes()
        with (folder / name).open("r+b") as file:
            file.truncate(size)  # sparse
        with pytest.raises(ValueError, match=f"{size} bytes"):
            SelfJudgeVerifier.from_pretrained(folder)
        (folder / name).write_bytes(data)


def test_a_file_that_is_right_but_for_its_many_tensors(folder):
    state = load_file(folder / "model.safetensors")
    save_file({**state, **{f"extra.{n}": torch.zeros(1) for n in range(3000)}}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"config\.json asks for") as refused:
        SelfJudgeVerifier.from_pretrained(folder)
    assert len(str(refused.value)) < 5000


def test_the_hubs_own_cache_may_be_loaded_as_a_folder(folder, tmp_path_factory):
    """Its snapshots are links to its blobs."""
    cache = tmp_path_factory.mktemp("models--org--judge")
    (cache / "blobs").mkdir()
    (cache / "snapshots" / "abc").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (cache / "blobs" / name).write_bytes((folder / name).read_bytes())
        (cache / "snapshots" / "abc" / name).symlink_to(cache / "blobs" / name)
    assert attempt(cache / "snapshots" / "abc")
