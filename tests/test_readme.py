"""The README's figures are those of the result files."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "benchmarks/real_pair/README.md", "docs/vllm.md"])
def test_figures_come_from_the_result_files(name):
    script = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))
    assert name in script["DOCUMENTS"]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert script["render"](text, name) == text, "run `make readme`"


def test_readme_names_only_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w/]+[/.][\w/.]*)` \|", text, re.MULTILINE)
    assert len(named) > 10
    missing = [name for name in named if not (ROOT / "hf_selfjudge" / name).exists() and not (ROOT / name).exists()]
    assert not missing


def test_the_python_of_the_readme_runs(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "Answer: 802" in printed  # the embedded target solves the problem of the example
    assert "accepted draft tokens per cycle" in printed
