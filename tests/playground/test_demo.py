"""The demo: what it measures, writes and says, in a small setting with the embedded pair and judge."""

import io
import json
from html.parser import HTMLParser

import pytest
from rich.console import Console

from hf_selfjudge import cli
from hf_selfjudge.playground import demo
from hf_selfjudge.playground.demo import DemoSettings, run, verdict
from hf_selfjudge.playground.world import TASKS

SETTINGS = DemoSettings(items=4, timed=1, batch_size=4, workers=1)


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory):
    """Folder, results and printed text of one small demo."""
    out = tmp_path_factory.mktemp("demo") / "new"
    text = io.StringIO()
    return out, run(SETTINGS, out, Console(file=text, width=160)), text


def made_up(judge_accepts=3.0, judge_score=0.75):
    exact = {"score": 0.75, "accepted_per_cycle": 2.0}
    judge = {"score": judge_score, "accepted_per_cycle": judge_accepts}
    unscored = {"exact": {**exact, "score": None}, "judge": {"score": None, "accepted_per_cycle": 2.2}}
    return {"tasks": {"news": {"exact": exact, "judge": judge}, "open_ended": unscored}}


def test_results_are_written_and_complete(demonstrated):
    out, results, _ = demonstrated
    assert json.loads((out / "results.json").read_text()) == results
    assert results["settings"] == {**results["settings"], "items": 4, "timed": 1, "batch_size": 4, "workers": 1}
    assert set(results["tasks"]) == set(TASKS)
    for task, rows in results["tasks"].items():
        assert list(rows) == ["plain", "exact", "judge"]
        for method, row in rows.items():
            assert row["items"] == (1 if task == "open_ended" else 4)
            assert (row["score"] is None) == (task == "open_ended")
            assert row["relative_speed"] > 0
            expected = 1 - 1 / row["tokens_per_target_forward"]
            assert row["target_forwards_saved"] == pytest.approx(expected, abs=1e-3)
            assert (row["accepted_per_cycle"] is None) == (method == "plain")
        assert rows["plain"]["score"] == rows["exact"]["score"]
        assert rows["plain"]["tokens_per_target_forward"] == rows["plain"]["relative_speed"] == 1.0
        assert rows["exact"]["judged_in_per_answer"] == 0


def test_the_table_and_the_verdict_are_printed(demonstrated):
    out, results, text = demonstrated
    printed = " ".join(text.getvalue().split())
    for words in (*demo.LABELS.values(), *(task.replace("_", " ") for task in TASKS)):
        assert words in printed
    assert verdict(results) in printed
    assert str(out / "index.html") in text.getvalue().replace("\n", "")


class Resources(HTMLParser):
    """Collects the tags of a page and everything it would load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.tags, self.loaded = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name.split(":")[-1] in ("src", "href", "srcset", "data", "action") and not value.startswith("#"):
                self.loaded.append((tag, name, value))
            if "url(" in (value or "") and "url(#" not in value:
                self.loaded.append((tag, name, value))


def test_the_page_is_self_contained(demonstrated):
    out, _, _ = demonstrated
    page = (out / "index.html").read_text()
    reader = Resources()
    reader.feed(page)
    assert reader.loaded == []
    assert {"table", "svg", "style"} <= reader.tags
    assert not {"script", "link", "iframe", "img"} & reader.tags
    assert "@import" not in page
    for words in (*demo.LABELS.values(), *(task.replace("_", " ") for task in TASKS), "accepted by the judge"):
        assert words in page
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "results.json"]


def test_the_verdict_names_gain_and_cost():
    assert verdict(made_up()) == (
        "The judge accepts 10 to 50 % more draft tokens per cycle than exact verification; task scores change by "
        "+0.0 to +0.0 points."
    )
    assert "-5.0 to -5.0 points" in verdict(made_up(judge_score=0.7))


def test_the_results_name_the_threshold_that_was_used():
    part = {"items": 1, "scores": [1.0], "cycles": 2, "new_tokens": 4, "accepted": 2, "judged_in": 0}
    decoded = [{"task": "news", "method": method, **part} for method in ("exact", "judge")]
    timed = [{"task": "news", "plain": (1.0, 4), "exact": (1.0, 4), "judge": (1.0, 4)}]
    for given in ("recall", "f1", 0.25, 0.0):
        results = demo._results(DemoSettings(threshold=given), decoded, timed)
        assert results["threshold"]["name"] == given


@pytest.mark.parametrize("name", ["items", "gamma", "timed", "batch_size", "workers"])
def test_bad_settings_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0, expected at least 1"):
        DemoSettings(**{name: 0})


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "usage: selfjudge demo" in text
    for option in ("--items", "--gamma", "--threshold", "--workers", "--out"):
        assert option in text


def test_the_command_line_passes_its_settings_on(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(demo, "run", lambda settings, out: seen.append((settings, out)))
    cli.main(["demo", "--items", "3", "--threshold", "0.5", "--workers", "1", "--out", str(tmp_path)])
    cli.main(["demo", "--threshold", "f1", "--gamma", "4", "--out", str(tmp_path)])
    assert seen == [
        (DemoSettings(items=3, threshold=0.5, workers=1), tmp_path),
        (DemoSettings(threshold="f1", gamma=4), tmp_path),
    ]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", "--items", "0"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "selfjudge: items is 0, expected at least 1.\n"


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["no-such-command"])
    assert "invalid choice" in capsys.readouterr().err
