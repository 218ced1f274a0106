"""The page and the table of a comparison show the numbers of its JSON."""

import csv
import json
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

from comparing import OPEN, SETTINGS, point

from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.page import conditions, page, report


class Tables(HTMLParser):
    """The tables of a page as lists of rows of texts, its tags, and what it loads."""

    def __init__(self):
        super().__init__()
        self.tables, self.open, self.tags, self.loaded, self.cell = [], [], set(), [], None

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None


def bounded(value, factor=1, sign=""):
    return "{:{f}} [{:{f}}, {:{f}}]".format(*(factor * value[k] for k in ("estimate", "low", "high")), f=f"{sign}.2f")


def test_the_page_shows_the_numbers_of_the_json(compared):
    out, _, files = compared
    results = json.loads((out / "compare.json").read_text())
    reader = Tables()
    reader.feed((out / "index.html").read_text())
    assert reader.open == []
    assert not {"script", "link", "iframe"} & reader.tags
    assert all(loaded.startswith("data:image/png;base64,") for loaded in reader.loaded)
    matched, pooled = reader.tables[0], reader.tables[3]
    methods = results["matched"]["within"]["methods"]
    assert {row[0] for row in matched[1:]} == set(methods)
    for row in matched[1:]:
        entry = methods[row[0]]
        assert row[1].startswith(results["points"][entry["point"]]["rule"])
        assert row[2] == str(len(results["methods"][row[0]]))
        assert row[3] == bounded(entry["test"]["accepted_per_cycle"])
        assert row[4] == bounded(entry["test"]["length_ratio"])
        assert row[5] == bounded(entry["test"]["score_difference"], 100, "+")
        if row[0] != "ours":
            assert row[8] == bounded(entry["ours_minus_this"]["accepted_per_cycle"], 1, "+")
    assert len(pooled) == 1 + len(results["points"])
    for row, found in zip(pooled[1:], results["points"], strict=True):
        expected = found["test"]["pooled"]
        assert row[:2] == [found["rule"], bounded(expected["score"], 100)]
        assert row[3] == bounded(expected["accepted_per_cycle"])
        assert row[5] == f"{expected['tokens_per_target_forward']:.2f}"
        assert row[-2:] == [str(expected["lost"]), str(expected["gained"])]
    text = unescape((out / "index.html").read_text())
    assert results["verdict"] in text
    assert conditions(results) in text
    assert [path.name for path in files] == ["compare.json", "compare.csv", "tradeoff.png", "index.html"]
    assert (out / "tradeoff.png").read_bytes().startswith(b"\x89PNG")


def test_the_csv_has_every_row(compared):
    out, results, _ = compared
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    assert len(rows) == 4 * 2 * 3  # points, sets, two tasks and the pool
    (row,) = [r for r in rows if (r["set"], r["rule"], r["task"]) == ("test", "topk:2", "pooled")]
    expected = point(results, "topk:2")["test"]["pooled"]
    assert float(row["accepted_per_cycle_high"]) == expected["accepted_per_cycle"]["high"]
    assert float(row["score_difference"]) == expected["score_difference"]["estimate"]
    assert {r["score"] for r in rows if r["task"] == OPEN} == {""}


def test_a_page_without_any_score(compared, tmp_path):
    out, _, _ = compared
    only = compare(replace(SETTINGS, tasks=(f"{OPEN}:2",)), out, progress=False)
    assert only["computed"]["results"] == 0  # counts are per task
    assert only["matched"] == {}
    assert [path.name for path in report(only, tmp_path)] == ["compare.json", "compare.csv", "index.html"]
    assert "No task has a score" in page(only, None)
