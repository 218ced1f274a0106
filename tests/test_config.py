"""config.json: what is written is read back, and every wrong field is named."""

import json

import pytest

from hf_selfjudge import JudgeConfig, ModelReference
from hf_selfjudge.config import FEATURES, FORMAT_VERSION, MAX_CONFIG_BYTES

FULL = JudgeConfig(
    hidden_size=24,
    features=("hidden", "s_prefix", "kl_pq"),
    hidden_units=(8,),
    thresholds={"f1": 0.4, "recall": 0.7},
    default_threshold="recall",
    target=ModelReference("org/target", "abc123"),
    draft=ModelReference("org/draft"),
    labels={"N": 20, "tau": -1.5},
    metrics={"auc": 0.81, "by task": {"gsm8k": 0.8}},
)


def test_the_text_reads_back_equal():
    assert JudgeConfig.from_json(FULL.to_json()) == FULL
    assert JudgeConfig.from_json(JudgeConfig(hidden_size=3).to_json()) == JudgeConfig(hidden_size=3)
    assert json.loads(FULL.to_json())["format_version"] == FORMAT_VERSION


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("target", "org/target", "ModelReference"), ("draft", {"id": "x"}, "ModelReference"), ("hidden_units", 5, "list")],
)
def test_what_could_not_be_read_back_is_refused(field, value, expected):
    with pytest.raises(ValueError, match=f"{field} is .*, expected a {expected}"):
        JudgeConfig(hidden_size=4, **{field: value})


def test_the_config_of_a_model_is_not_a_judges():
    with pytest.raises(ValueError, match="of a model of type 'llama', not of a judge"):
        JudgeConfig.from_json(json.dumps({"model_type": "llama", "hidden_size": 4}))


def test_numbers_that_json_does_not_have():
    config = JudgeConfig(hidden_size=4, features=["hidden"], metrics={"auc": float("nan"), "all": [float("inf"), 1.0]})
    assert "NaN" not in config.to_json()
    assert JudgeConfig.from_json(config.to_json()).metrics == {"auc": None, "all": [None, 1.0]}


def test_derived_values():
    assert FULL.input_size == 24 + 1 + 1
    assert JudgeConfig(hidden_size=24, features=FEATURES).input_size == 3 * 24 + 13
    assert FULL.needs_draft_logits
    assert not JudgeConfig(hidden_size=24, features=("hidden", "rank")).needs_draft_logits
    assert (FULL.theta(), FULL.theta("f1"), FULL.theta(0.25), FULL.theta(1)) == (0.7, 0.4, 0.25, 1.0)


@pytest.mark.parametrize("theta", [-0.01, 1.01, float("nan"), float("inf"), True, [0.5]])
def test_thetas_outside_0_1(theta):
    with pytest.raises(ValueError, match=r"expected a number in \[0, 1\]"):
        FULL.theta(theta)


def test_unknown_threshold_names():
    with pytest.raises(ValueError, match=r"no threshold named 'f2'; it has \['f1', 'recall'\]"):
        FULL.theta("f2")


@pytest.mark.parametrize("name", ["format_version", "hidden_size", "features", "thresholds", "default_threshold"])
def test_missing_fields(name):
    fields = json.loads(FULL.to_json())
    del fields[name]
    with pytest.raises(ValueError, match=name):
        JudgeConfig.from_json(json.dumps(fields))


@pytest.mark.parametrize("name", ["hidden_units", "target", "draft", "labels", "metrics", "model_type"])
def test_optional_fields(name):
    fields = json.loads(FULL.to_json())
    del fields[name]
    assert JudgeConfig.from_json(json.dumps(fields)).thresholds == FULL.thresholds


def test_unknown_fields():
    fields = json.loads(FULL.to_json()) | {"temperature": 1}
    with pytest.raises(ValueError, match="unknown temperature"):
        JudgeConfig.from_json(json.dumps(fields))


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], 1.5, True])
def test_unknown_format_versions(version):
    fields = json.loads(FULL.to_json()) | {"format_version": version}
    with pytest.raises(ValueError, match=r"format_version is .*[uU]pgrade hf_selfjudge"):
        JudgeConfig.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("hidden_size", value) for value in (0, -3, "24", 24.0, None, True, [24], 10**12)),
        *(("features", value) for value in ([], "hidden", ["hiden"], ["rank", "rank"], [["hidden"]], [1], {}, None)),
        *(("hidden_units", value) for value in ([0], [-1], ["8"], [8.0], 8, [True], {}, [10**12])),
        *(("thresholds", value) for value in ({}, [], {"a": 2}, {"a": "0.5"}, {"a": None}, {"a": True}, 0.5, None)),
        *(("default_threshold", value) for value in ("f2", None, 0.4, ["f1"], {})),
        *(("target", value) for value in ("org/target", {}, {"id": ""}, {"id": 3}, {"id": "a", "x": 1}, ["a"], 3)),
        *(("draft", value) for value in ({"revision": "a"}, {"id": "a", "revision": 3}, {"id": None})),
        *(("labels", value) for value in ([], None, 3)),
        *(("metrics", value) for value in ([], "good")),
    ],
)
def test_ill_typed_fields(name, value):
    fields = json.loads(FULL.to_json()) | {name: value}
    with pytest.raises(ValueError, match=name.rstrip("s") if name not in ("target", "draft") else "reference|expected"):
        JudgeConfig.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "null", "[1]", '"a"', "{'a': 1}", "[" * 100_000, "1" * 5000, "\x00"])
def test_texts_that_are_no_config(text):
    with pytest.raises(ValueError, match=r"JSON|integer string"):
        JudgeConfig.from_json(text)


def test_files_that_are_no_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        JudgeConfig.load(path)
    path.write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(ValueError, match="bytes; a judge's config"):
        JudgeConfig.load(path)
    path.write_text(FULL.to_json())
    assert JudgeConfig.load(path) == FULL


@pytest.mark.parametrize(
    ("reference", "name", "same"),
    [
        ("org/Llama-3-8B", "org/Llama-3-8B", True),
        ("org/Llama-3-8B", "/models/llama-3-8b/", True),
        ("/data/Llama-3-8B", "org/Llama-3-8B", True),
        ("C:\\models\\tiny", "tiny", True),
        ("org/Llama-3-8B", "org/Llama-3-8B-Instruct", False),
        ("org/Llama-3-8B", "org/Llama-3", False),
    ],
)
def test_model_references(reference, name, same):
    assert ModelReference(reference).names(name) is same
