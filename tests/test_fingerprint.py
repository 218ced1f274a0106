"""Results must not be taken for those of another model."""

import pytest

from hf_selfjudge.fingerprint import folder_fingerprint, has_weights

SIZE = 24 << 20


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("a b")
    (tmp_path / "notes.md").write_text("mine")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(SIZE)
    return tmp_path


@pytest.mark.parametrize("place", [0, 5 << 20, SIZE // 2, SIZE - (64 << 10)])
def test_a_stretch_of_other_weights_makes_another_model(folder, place):
    before = folder_fingerprint(folder)
    assert folder_fingerprint(folder) == before
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"\1" * (64 << 10))  # less than a matrix of a small layer
    assert folder_fingerprint(folder) != before


def test_what_belongs_to_a_model(folder):
    before = folder_fingerprint(folder)
    (folder / "notes.md").write_text("others")
    assert folder_fingerprint(folder) == before
    for name in ("merges.txt", "config.json", "model.gguf"):
        (folder / name).write_text(f"other {name}")
        assert folder_fingerprint(folder) != before
        before = folder_fingerprint(folder)
    assert has_weights(folder)
    for name in ("model.safetensors", "model.gguf"):
        (folder / name).unlink()
    assert not has_weights(folder)


def test_every_byte_of_a_small_file_counts(folder):
    (folder / "model.safetensors").write_bytes(bytes(9000))
    before = folder_fingerprint(folder)
    for place in (0, 4500, 8999):
        data = bytearray(9000)
        data[place] = 1
        (folder / "model.safetensors").write_bytes(data)
        assert folder_fingerprint(folder) != before
