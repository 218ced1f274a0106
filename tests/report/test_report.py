"""The report: its numbers against a slow count, and its page against its numbers."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest
import torch
from sklearn.metrics import roc_auc_score

from hf_selfjudge.pipeline.calibrate import calibrate
from hf_selfjudge.pipeline.fit import fit
from hf_selfjudge.pipeline.records import Prompt, Response, Substitutions
from hf_selfjudge.pipeline.settings import CalibrateSettings, FitSettings
from hf_selfjudge.report import build_report, write_report
from hf_selfjudge.report.content import plain
from hf_selfjudge.report.figures import FIGURES

PROMPTS, EACH, LENGTH = 50, 8, 30
ROWS = PROMPTS * EACH


@pytest.fixture(scope="module")
def made(tokenizer):
    """Everything a build hands to the report, made up."""
    generator = torch.Generator().manual_seed(0)
    prompts = [
        Prompt(number, ("math", "<chat>")[number % 2], ("train", "train", "validation", "calibration")[number // 2 % 4],
               "", [5, 6])
        for number in range(PROMPTS)
    ]  # fmt: skip
    responses = [
        Response(number, [5, 6], torch.randint(4, 101, (LENGTH,), generator=generator).tolist())
        for number in range(PROMPTS)
    ]
    hidden = torch.randn(ROWS, 4, generator=generator)
    likelihood = (3 * hidden[:, 0] + torch.randn(ROWS, generator=generator))[:, None] * torch.tensor([0.0, 1.0])
    prompt_ids, positions = torch.arange(PROMPTS).repeat_interleave(EACH), 3 * torch.arange(EACH).repeat(PROMPTS)
    at = list(zip(prompt_ids.tolist(), positions.tolist(), strict=True))
    substitutions = Substitutions(
        prompt_ids=prompt_ids,
        positions=positions,
        target_tokens=torch.tensor([responses[prompt].answer[position] for prompt, position in at]),
        draft_tokens=torch.randint(2, 14, (ROWS,), generator=generator),
        ranks=torch.zeros(ROWS, dtype=torch.long),
        prefix=torch.randn(ROWS, generator=generator),
        suffix_tokens=torch.tensor([0, 20]).expand(ROWS, 2).contiguous(),
        likelihood=likelihood,
        confidence=likelihood,
        features={"hidden": hidden, "s_prefix": torch.randn(ROWS, generator=generator)},
        lengths=(0, 20),
    )
    labels = (substitutions.score(20) > 1.0).to(torch.int8)
    labels[::17] = -1
    splits = [prompts[prompt].split for prompt in prompt_ids.tolist()]
    found = fit(substitutions, labels, splits, FitSettings(feature_sets=("paper", "hidden+s_prefix", "next"), seeds=2))
    held_out = torch.tensor([split == "calibration" for split in splits])
    probability = found.probability(substitutions)
    calibration = calibrate(
        probability[held_out], labels[held_out], prompt_ids[held_out], CalibrateSettings(risks=(0.01, 0.5))
    )
    manifest = {
        "models": {
            "target": {"id": "org/Big-8B", "revision": "abc"},
            "draft": {"id": "org/Small-1B", "revision": None},
        },
        "packages": {"torch": "2.13"},
        "settings": {"calibrate": {"delta": 0.05, "risks": [0.01, 0.5]}, "label": {"length": 20, "tau": None}},
        "stages": {
            "score": {"rows": ROWS, "seconds": 3.2},
            "fit": {"rows": ROWS, "seconds": 0.0},
            "label": {"made_with": {}},
        },
    }
    statistics = {"tau": 1.0, "tau_from": "given", "warnings": ["a <b>warning</b>"]}
    report = build_report(
        prompts, responses, substitutions, labels, statistics, found, calibration, tokenizer, manifest
    )
    return {"report": report, "prompts": prompts, "responses": responses, "substitutions": substitutions,
            "labels": labels, "probability": probability, "calibration": calibration, "splits": splits}  # fmt: skip


@pytest.fixture(scope="module")
def written(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return folder, write_report(folder, made["report"])


class Tables(HTMLParser):
    """The text of every table's cells by the table's id; complains about tags that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.cells, self.pictures, self.tags, self.cell = [], {}, [], set(), None

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        known = dict(attributes)
        if tag == "table":
            self.name = known["id"]
            self.cells[self.name] = []
        if tag == "tr":
            self.cells[self.name].append([])
        if tag in ("td", "th"):
            self.cell = []
        if tag in ("img", "source"):
            self.pictures.append(known.get("src") or known["srcset"])
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.cells[self.name][-1].append("".join(self.cell))
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)


@pytest.fixture(scope="module")
def page(written):
    parser = Tables()
    parser.feed((written[0] / "report.html").read_text(encoding="utf-8"))
    parser.close()
    assert parser.open == []
    return parser


def test_files(made, written):
    folder, paths = written
    assert {path.name for path in paths} == {"report.json", "report.html", *(f"{name}.png" for name in FIGURES)}
    assert set(folder.iterdir()) == set(paths)
    assert json.loads((folder / "report.json").read_text()) == made["report"]
    assert all((folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in FIGURES)


def test_sources_are_counted(made):
    report, labels, substitutions = made["report"], made["labels"], made["substitutions"]
    math, _chat, everything = report["sources"]
    own = [row for row in range(ROWS) if made["prompts"][int(substitutions.prompt_ids[row])].source == "math"]
    decided = [row for row in own if labels[row] >= 0]
    assert (math["source"], math["prompts"], math["responses"]) == ("math", PROMPTS // 2, PROMPTS // 2)
    assert math["tokens"] == LENGTH * PROMPTS // 2
    assert (math["mismatches"], math["labelled"]) == (len(own), len(decided))
    assert math["acceptable"] == pytest.approx(sum(int(labels[row]) for row in decided) / len(decided))
    measured = [row for row in decided if made["splits"][row] == "calibration"]
    assert math["auc"] == pytest.approx(roc_auc_score(labels[measured], made["probability"][measured]))
    theta = report["judge"]["theta"]
    accepted = [row for row in measured if made["probability"][row] > theta]
    assert math["accepted"] == pytest.approx(len(accepted) / len(measured))
    assert math["wrong"] == pytest.approx(sum(int(labels[row]) == 0 for row in accepted) / len(accepted))
    assert everything["source"] == "all"
    assert everything["mismatches"] == ROWS
    assert everything["auc"] == pytest.approx(made["calibration"].auc)


def test_the_histogram_counts_training_rows(made):
    found, labels = made["report"]["scores"], made["labels"]
    training = torch.tensor([split == "train" for split in made["splits"]])
    for name, value in (("acceptable", 1), ("unacceptable", 0)):
        assert sum(found[name]) == int((training & (labels == value)).sum())
    edges, scores = found["edges"], made["substitutions"].score(20)[training & (labels == 1)]
    inside = sum(edges[30] <= score < edges[40] for score in scores.tolist())
    assert sum(found["acceptable"][30:40]) == inside
    assert edges[0] < found["tau"] < edges[-1]


def test_frequent_substitutions_are_counted(made, tokenizer):
    report, labels, substitutions = made["report"], made["labels"], made["substitutions"]
    theta = report["judge"]["theta"]
    rows = [row for row in range(ROWS) if made["splits"][row] == "calibration" and labels[row] >= 0]
    found = report["substitutions"]
    assert found["rows"] == len(rows) == sum(line["rows"] for line in found["categories"])
    accepted = [row for row in rows if made["probability"][row] > theta]
    assert sum(line["accepted"] for line in found["categories"]) == len(accepted)
    assert sum(line["wrong"] for line in found["categories"]) == sum(int(labels[row]) == 0 for row in accepted)
    for name, chosen in (("accepted", accepted), ("rejected", [row for row in rows if row not in accepted])):
        for line in found[name]:
            same = [
                row
                for row in chosen
                if tokenizer.decode(substitutions.target_tokens[row]) == line["target"]
                and tokenizer.decode(substitutions.draft_tokens[row]) == line["draft"]
            ]
            assert line["count"] == len(same) > 0
            assert line["acceptable"] == sum(int(labels[row]) for row in same)
            answer = made["responses"][int(substitutions.prompt_ids[same[0]])].answer
            position = int(substitutions.positions[same[0]])
            before = tokenizer.decode(answer[:position], skip_special_tokens=True)
            assert before.endswith(line["before"])
            assert tokenizer.decode(answer[position + 1 :], skip_special_tokens=True).startswith(line["after"])
    # token 2 ends a text, whatever it replaces
    ended = [line for line in found["rejected"] + found["accepted"] if line["draft"] == "<eos>"]
    assert ended
    assert {line["category"] for line in ended} == {"end of text"}


def share(value) -> str:
    return "\u2013" if value is None else f"{100 * value:.1f} %"


def test_the_pages_numbers_are_the_reports(made, page):
    report = made["report"]
    points = page.cells["points"][1:]
    assert [row[0] for row in points] == list(report["calibration"]["thresholds"])
    for row, point in zip(points, report["calibration"]["points"], strict=True):
        assert row[1:3] == [f"{point['theta']:.4f}", f"{1 - point['theta']:.4f}"]
        assert row[3:5] == [share(point["accepted"]), share(point["precision"])]
        assert row[7:] == [f"{point['f1']:.3f}", share(point["wrong"]), share(point["bound"])]
    for row, line in zip(page.cells["sources"][1:], report["sources"], strict=True):
        assert row[:2] == [line["source"], f"{line['prompts']:,}"]
        assert row[6:8] == [share(line["acceptable"]), f"{line['auc']:.3f}"]
    candidates = {(row[0], row[1]): row for row in page.cells["candidates"][1:]}
    assert len(candidates) == len(report["fit"]["table"]) == 2
    for entry in report["fit"]["table"]:
        row = candidates[entry["feature_set"], entry["model"]]
        assert row[4:] == [f"{entry['c']:.3g}", *(f"{entry[n]:.4f}" for n in ("mean", "sd", "calibration_auc"))]
    for row, line in zip(page.cells["categories"][1:], report["substitutions"]["categories"], strict=True):
        assert row == [line["category"], *(f"{line[name]:,}" for name in ("rows", "acceptable", "accepted", "wrong"))]
    assert [row[3] for row in page.cells["accepted"][1:]] == [
        str(e["count"]) for e in report["substitutions"]["accepted"]
    ]
    assert page.cells["stages"][1:] == [["score", "400", "3.2 s", "125"], ["fit", "400", "0.0 s", "\u2013"]]
    assert ["calibrate", "risks", "0.01, 0.5"] in page.cells["settings"]


def test_headline_numbers(made, written):
    report, text = made["report"], (written[0] / "report.html").read_text(encoding="utf-8")
    cards = dict(reversed(card) for card in re.findall("<div class='card'><b>(.*?)</b><span>(.*?)</span>", text))
    point = next(point for point in report["calibration"]["points"] if point["name"] == "f1")
    labels = report["labels"]["counts"]
    assert cards == {
        "AUC on calibration prompts": f"{report['calibration']['auc']:.3f}",
        "of mismatches accepted at f1": share(point["accepted"]),
        "of those acceptable": share(point["precision"]),
        "of unacceptable ones rejected": share(point["unacceptable_rejected"]),
        "labels": f"{labels['acceptable'] + labels['unacceptable']:,}",
        "of them acceptable": share(labels["acceptable"] / (labels["acceptable"] + labels["unacceptable"])),
        "substitutions scored per second": "125",
        "for all stages": "3.2 s",
    }


def test_the_page_stands_alone(made, written, page):
    text = (written[0] / "report.html").read_text(encoding="utf-8")
    assert len(page.pictures) == 2 * len(FIGURES)  # for light and for dark pages
    assert all(source.startswith("data:image/png;base64,") for source in page.pictures)
    assert "http" not in text
    assert not page.tags & {"script", "link", "iframe"}
    assert "<title>A judge for Big-8B with Small-1B</title>" in text
    assert f"AUC is {made['calibration'].auc:.3f}" in text
    assert "a &lt;b&gt;warning&lt;/b&gt;" in text  # what others wrote is shown, not obeyed
    assert "&lt;chat&gt;" in text
    assert "next: left out" in text
    assert "risk-1%: accepts nothing" in text


def test_without_matplotlib_there_are_no_figures(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    paths = write_report(tmp_path, made["report"])
    assert [path.name for path in paths] == ["report.json", "report.html"]
    assert "Install matplotlib" in (tmp_path / "report.html").read_text()


def test_drawing_leaves_matplotlib_as_it_was(made):
    import matplotlib

    from hf_selfjudge.report.figures import draw_figures

    before = dict(matplotlib.rcParams)
    first = draw_figures(made["report"])
    assert dict(matplotlib.rcParams) == before
    assert draw_figures(made["report"]) == first  # the same report gives the same bytes


def test_numbers_that_json_does_not_know_become_null():
    assert plain({"a": (1.0, float("nan")), 2: float("inf")}) == {"a": [1.0, None], "2": None}
