"""The command line: what it shows, what it costs, how options become settings and errors one line."""

import argparse
import json
import logging
import resource
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields

import pytest
import torch
from safetensors import SafetensorError

from hf_selfjudge import cli
from hf_selfjudge.cli.options import add_options
from hf_selfjudge.cli.stages import COMMANDS
from hf_selfjudge.pipeline.build_settings import GROUPS, BuildSettings, group_of
from hf_selfjudge.pipeline.settings import Settings, option

HEAVY = ("torch", "transformers", "datasets", "sklearn", "numpy", "safetensors", "yaml")
CODE = f"""
import json, sys
from hf_selfjudge.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0
print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""


def show(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_help_answers_at_once_and_loads_nothing():
    seconds = []
    for _ in range(3):
        begun = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = show("--help")
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime)  # whatever else runs here
    assert json.loads(shown.splitlines()[-1]) == []
    assert min(seconds) < 0.3
    for name in ("demo", *COMMANDS):
        assert f"\n    {name}" in shown


def test_the_help_of_build_teaches_without_loading_torch():
    shown = show("build", "--help")
    assert json.loads(shown.splitlines()[-1]) == ["yaml"]
    for text in ("(default: 0, 5, 10, 20)", "risk-x%", "selfjudge build --target", "accelerate launch", "gsm8k "):
        assert text in shown
    for kind in GROUPS.values():
        for field in fields(kind):
            assert f"--{field.name.replace('_', '-')} " in shown or f"--{field.name.replace('_', '-')}," in shown


def test_names_of_settings_are_unique_over_all_groups():
    names = [field.name for kind in GROUPS.values() for field in fields(kind)]
    assert sorted(set(names)) == sorted(names)
    assert group_of("tau") == "label"
    with pytest.raises(ValueError, match="no setting 'theta'"):
        group_of("theta")


@dataclass(frozen=True)
class Example(Settings):
    """An example."""

    count: int = option(3, "how many")
    share: float | None = option(None, "of all")
    kind: str = option("a", "which", ("a", "b"))
    words: tuple[str, ...] = option(("x",), "some", ("x", "y", "z"))
    numbers: tuple[int, ...] = option((), "more")
    prompts: tuple[str, ...] = option((), "sources")
    fast: bool = option(False, "hurry")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {}),
        (["--count", "5", "--share", "0.5"], {"count": 5, "share": 0.5}),
        (["--share", "none"], {"share": None}),
        (["--words", "x,y", "--words", "z"], {"words": ("x", "y", "z")}),
        (["--numbers", "1, 2,3"], {"numbers": (1, 2, 3)}),
        (["--prompts", "a?x=1,2", "--prompts", "b"], {"prompts": ("a?x=1,2", "b")}),
        (["--fast"], {"fast": True}),
        (["--no-fast"], {"fast": False}),
    ],
)
def test_options_are_those_of_the_settings(given, expected):
    parser = argparse.ArgumentParser()
    add_options(parser, Example)
    found = vars(parser.parse_args(given))
    assert found == expected
    Example(**found)


@pytest.mark.parametrize("given", [["--count", "x"], ["--kind", "c"], ["--numbers", "1,x"], ["--other"]])
def test_bad_options_are_refused(given, capsys):
    parser = argparse.ArgumentParser()
    add_options(parser, Example)
    with pytest.raises(SystemExit):
        parser.parse_args(given)
    assert "error:" in capsys.readouterr().err


def test_settings_survive_the_manifest():
    settings = BuildSettings().updated({"tau": -1.5, "prompts": ("a", "b"), "lengths": (0, 20), "target": "big"})
    assert BuildSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_settings_of_one_stage_must_fit_those_of_the_others():
    settings = BuildSettings().updated({"length": 7, "rows": "with-originals", "default_threshold": "risk-3%"})
    settings.check(["respond", "mine", "score"])
    with pytest.raises(ValueError, match=r"length is 7, expected one of the lengths scored \(0, 5, 10, 20\)"):
        settings.check(["label"])
    with pytest.raises(ValueError, match="originals is False, expected True, because rows is with-originals"):
        settings.check(["fit"])
    with pytest.raises(ValueError, match=r"default_threshold is 'risk-3%', expected one of f1, .*, risk-10%"):
        settings.check(["calibrate"])
    settings.updated({"risks": (0.03,)}).check(["calibrate"])


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    try:
        cli.main(list(arguments))
        code = 0
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def _quiet():
    """Take back what the command does to logging."""
    root, package = logging.getLogger(), logging.getLogger("hf_selfjudge")
    handlers, level = list(root.handlers), package.level
    yield
    root.handlers[:] = handlers
    package.setLevel(level)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "--out", "{out}"], "holds no build"),
        (["build", "--out", "{out}"], "give --target"),
        (["build", "--out", "{out}", "--target", "no/such", "--draft", "playground", "--prompts", "gsm8k"], "no/such"),
        (["build", "--out", "{out}", "--target", "playground", "--draft", "playground"], "No prompts were given"),
        (["build", "--out", "{out}", "--delta", "2"], "delta is 2.0, expected a probability"),
        (["build", "--out", "{out}", "--device-map", "auto", "--tp-plan", "auto"], "drop one"),
    ],
)  # fmt: skip
def test_errors_are_one_line(arguments, message, tmp_path, capsys):
    code, out, err = run(*(argument.format(out=tmp_path / "judge") for argument in arguments), capsys=capsys)
    assert code == 2
    assert out == ""
    assert err.startswith("selfjudge: ")
    assert err.count("\n") == 1
    assert message in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("_quiet")
def test_unknown_stages_to_overwrite_are_refused(capsys):
    code, _, err = run("mine", "--out", "judge", "--overwrite", "score", capsys=capsys)
    assert code == 2
    assert "invalid choice: 'score'" in err


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA\nout of memory"), "OutOfMemoryError: CUDA out of memory. The device's memory"),
        (SafetensorError("incomplete"), "download or make that model again"),
        (BrokenProcessPool("gone"), "give fewer --workers"),
    ],
)
def test_errors_of_other_libraries_say_what_to_do(error, message, capsys, monkeypatch):
    def fail(**options):
        raise error

    monkeypatch.setattr(cli, "_demo", fail)
    code, _, err = run("demo", capsys=capsys)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    def fail(**options):
        raise RuntimeError("wrong")

    monkeypatch.setattr(cli, "_demo", fail)
    with pytest.raises(RuntimeError, match="wrong"):
        cli.main(["demo"])
