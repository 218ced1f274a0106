"""Votes, the folded judge, and the whole command on the embedded pair: resumable, and clear about bad input."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import build_judge

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.checkers import get_checker
from hf_selfjudge.cli import main
from hf_selfjudge.evaluation import workers
from hf_selfjudge.evaluation.workers import BenchSettings
from hf_selfjudge.features import Block, judge_features
from hf_selfjudge.pipeline.records import Prompt
from hf_selfjudge.pipeline.settings import PromptSettings
from hf_selfjudge.tuning import earlier
from hf_selfjudge.tuning import tune as module
from hf_selfjudge.tuning.effects import Effects
from hf_selfjudge.tuning.explorer import SCALARS, Decisions, Explorer
from hf_selfjudge.tuning.judge import make_judge
from hf_selfjudge.tuning.rollouts import Explored, Part, Rollout, Worker, plan, read, write
from hf_selfjudge.tuning.tune import TuneSettings, collect, tune
from hf_selfjudge.tuning.votes import vote

BENCH = BenchSettings("playground", "playground", gamma=5, batch_size=16, max_new_tokens=120)

RULE = "topk:40"
"""Accepts what changes many answers."""
TOKENS = [[5 + at] * (8 + at % 5) for at in range(11)]
"""Prompts."""


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["A", "A", "B"], [None, None, False]),
        (["A", "A", "A", "B"], [True, True, True, False]),
        (["B", "A", "A", None], [False, None, None, False]),
        (["A", "B", "C"], [None, None, None]),
        (["A", "A", "B", "B", "C"], [False, False, False, False, False]),
        ([None, None, None], [None, None, None]),
    ],
)
def test_an_answer_is_compared_with_what_most_others_say(outcomes, expected):
    assert vote(outcomes, get_checker("choice")) == expected


def test_the_judge_is_the_worth_of_a_decision_in_one_linear_layer():
    generator = torch.Generator().manual_seed(0)
    judges = [build_judge(features=("hidden",)), build_judge(features=("previous_hidden", "hidden", "log_p", "kl_qp"))]
    logits = torch.randn(3, 6, 101, generator=generator)
    hidden = torch.randn(3, 6, 32, generator=generator)
    tokens = torch.randint(0, 101, (3, 5), generator=generator)
    block = Block(tokens, logits, hidden, torch.randn(3, 5, 101, generator=generator))
    opinions = [judge.logit(judge_features(block, judge.config.features)) for judge in judges]
    inputs = torch.cat([torch.stack(opinions, -1), judge_features(block, SCALARS)], dim=-1).reshape(15, -1).double()
    width = inputs.shape[1]
    cost = torch.randn(width + 1, generator=generator).double()
    cost[-1] = -2.0
    gain = torch.randn(width + 1, generator=generator).double()
    gain[-1] = 5.0
    effects = Effects(inputs.mean(0), inputs.std(0).clamp(min=1e-3), cost, gain, 1.0)
    judge, price = make_judge(effects, judges, inputs, 32)
    known = torch.cat([(inputs - effects.mean) / effects.std, torch.ones(15, 1)], dim=1)
    assert price == pytest.approx(2 / 6, rel=1e-6), "what the average decision costs per token: itself and five more"
    worth = known @ cost + price * (1 + known @ gain)
    assert torch.allclose(
        judge.logit(judge_features(block, judge.config.features)).reshape(-1).double(), worth / worth.std(), atol=1e-4
    )
    accepted = torch.sigmoid(worth / worth.std()) > judge.config.thresholds["accept-60%"]
    assert int(accepted.sum()) == 9
    assert judge.config.default_threshold == "accept-50%"


def settings(**changes):
    prompts = PromptSettings(("playground/word_problems:28",))
    given = {"bench": BENCH, "judges": ("playground",), "prompts": prompts, "rule": RULE, "rollouts": 3, "share": 0.7}
    return TuneSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned")
    return out, tune(settings(), out, progress=False)


def test_a_tuned_judge_is_a_judge_like_any_other(tuned):
    out, found = tuned
    judge = SelfJudgeVerifier.from_pretrained(out)
    assert judge.config.target.id == "hf_selfjudge/playground/target"
    assert set(judge.config.features) >= {"hidden", *SCALARS}
    assert judge.config.thresholds == found["thresholds"]
    assert judge.config.labels["rule"] == RULE
    assert json.loads((out / "tune.json").read_text()) == found
    assert [found["prompts"], found["answers"]] == [28, 84]
    assert found["decisions"] > 100
    assert found["kept"] < found["exact_kept"]
    assert 0.2 < found["resemblance"] < 0.95
    assert [entry["input"] for entry in found["inputs"]] == ["judge:playground", *SCALARS, "(all)"]
    for entry in found["inputs"][:-1]:
        assert sum(part["decisions"] for part in entry["effects"]) == found["decisions"]
        assert entry["effects"] == sorted(entry["effects"], key=lambda part: part["most"])


def test_a_killed_run_goes_on_with_what_is_there(tuned, tmp_path, monkeypatch):
    out, found = tuned
    parts = sorted((out / "rollouts").rglob("*.safetensors"))
    assert len(parts) == 8  # two batches, once exactly and three times by lot
    parts[3].write_bytes(parts[3].read_bytes()[:100])
    computed = []
    run = module.explore.__globals__["Worker"].run
    monkeypatch.setattr(
        module.explore.__globals__["Worker"], "run", lambda self, part: computed.append(part.path) or run(self, part)
    )
    again = tune(settings(), out, progress=False)
    assert computed == [parts[3]]
    assert {**again, "seconds": 0} == {**found, "seconds": 0}


def test_an_answer_that_does_not_fit_says_what_to_do(tmp_path, monkeypatch):
    def fail(self, block):
        raise torch.OutOfMemoryError("not enough")

    monkeypatch.setattr("hf_selfjudge.tuning.explorer.Explorer.accept", fail)
    with pytest.raises(ValueError, match=r"Not even one answer fits .* fewer --workers, or --max-prompt-tokens"):
        tune(settings(), tmp_path, progress=False)


def test_decisions_know_their_answer_however_the_batch_was_decoded(tmp_path, monkeypatch):
    accept, decode = Explorer.accept, workers.decode
    explored = Explored(replace(BENCH, batch_size=6), RULE, ("playground",), TOKENS, 40, "mark")
    part = Part(1, tuple(range(len(TOKENS))), tmp_path / "part.safetensors", 5, 0.999)

    def run(name, refill, rows=99):
        def hungry(self, block):
            if len(block.draft_tokens) > rows:
                raise torch.OutOfMemoryError("not enough")
            return accept(self, block)

        monkeypatch.setattr(Explorer, "accept", hungry)
        monkeypatch.setattr(workers, "decode", lambda *args, **kwargs: decode(*args, **{**kwargs, "refill": refill}))
        own = replace(part, path=tmp_path / name)
        Worker(explored).run(own)
        rollout = read(own, "mark")
        order = rollout.decisions.sequences.argsort(stable=True)
        return rollout.texts, rollout.decisions.sequences[order], rollout.decisions.inputs[order]

    texts, sequences, inputs = run("plain", refill=False)
    assert len(sequences.unique()) > 8
    for found in (run("refilled", refill=True), run("split", False, rows=2), run("both", True, rows=2)):
        assert found[0] == texts  # nearly all lots say yes, so that they do not depend on the batch
        assert torch.equal(found[1], sequences)
        assert torch.allclose(found[2], inputs, atol=1e-3)


def test_what_decides_the_answers_is_in_the_fingerprint(tmp_path, monkeypatch):
    seen = []

    def stop(explored, parts, progress):
        seen.append(explored.fingerprint)
        raise ValueError("far enough")

    monkeypatch.setattr(module, "explore", stop)
    changes = ({}, {"share": 0.4}, {"rule": "topk:3"}, {"seed": 1}, {"judges": ()}, {"bench": replace(BENCH, gamma=3)})
    for change in (*changes, {"rollouts": 4}):
        with pytest.raises(ValueError, match="far enough"):
            tune(settings(**change), tmp_path, progress=False)
    assert len(set(seen)) == len(changes), "more rollouts go on from what is there"


def test_an_earlier_run_on_other_prompts_counts_as_well(tuned, tmp_path):
    out, found = tuned
    other = PromptSettings(("playground/multiple_choice:24",))
    alone = tune(settings(prompts=other), tmp_path / "alone", progress=False)
    both = tune(settings(prompts=other, earlier=(str(out),)), tmp_path / "both", progress=False)
    for name in ("prompts", "answers", "decisions", "new_tokens", "voted"):
        assert both[name] == found[name] + alone[name]
    assert both["sources"] == {**found["sources"], **alone["sources"]}
    assert both["resemblance"] == pytest.approx((28 * found["resemblance"] + 24 * alone["resemblance"]) / 52)
    assert both["kept"] == pytest.approx(
        (found["voted"] * found["kept"] + alone["voted"] * (alone["kept"] or 0.0)) / both["voted"]
    )
    assert both["thresholds"] != found["thresholds"]
    with pytest.raises(ValueError, match="answers of the same run, which would count twice"):
        tune(settings(earlier=(str(tmp_path / "both"),)), tmp_path / "again", progress=False)
    mixed = PromptSettings(("playground/word_problems:28", "playground/news:4"))
    with pytest.raises(ValueError, match=r"28 prompts of .* would count twice; leave them out"):
        tune(settings(prompts=mixed, earlier=(str(out),)), tmp_path / "mixed", progress=False)
    with pytest.raises(ValueError, match="names the run's own folder"):
        tune(settings(earlier=(str(out),)), out, progress=False)
    ours, theirs = (earlier.read(folder, {"share": 0.7})[0] for folder in (out, tmp_path / "both"))
    assert torch.equal(theirs.resemblance[:84], ours.resemblance)
    assert torch.equal(theirs.prompts[:84], ours.prompts)
    assert theirs.prompts[84:].min() == 28
    assert torch.equal(theirs.decisions.inputs[: len(ours.decisions)], ours.decisions.inputs)
    assert theirs.decisions.sequences.max() == 155


def test_runs_that_differ_in_more_than_prompts_are_not_counted_together(tuned, tmp_path):
    out, _ = tuned
    with pytest.raises(ValueError, match=r"was explored with rule = 'topk:40', this run has 'topk:3'"):
        tune(settings(rule="topk:3", earlier=(str(out),)), tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match=r"holds no evidence .* Name such a run's --out"):
        tune(settings(earlier=(str(tmp_path),)), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_parts_are_larger_where_places_are_refilled(tmp_path):
    for device, sizes in (("cpu", [2, 2, 2, 2, 2, 1]), ("cuda", [8, 3])):
        explored = Explored(replace(BENCH, batch_size=2, device=device), RULE, (), TOKENS, 40, "mark")
        parts = plan(explored, 2, 0.5, 0, tmp_path)
        assert [len(part.prompts) for part in parts if part.number == 1] == sizes


def test_a_part_of_other_prompts_is_not_read(tmp_path):
    part = Part(1, (0, 1), tmp_path / "part.safetensors", 3, 0.5)
    decisions = Decisions(*(torch.zeros(0, dtype=dtype) for dtype in (torch.long, torch.bool, torch.long)),
                          torch.zeros(0, len(SCALARS)))  # fmt: skip
    write(part, "mark", Rollout(["a", "b"], [1, 1], decisions))
    assert read(part, "mark").texts == ["a", "b"]
    for other in (replace(part, prompts=(2, 3)), replace(part, seed=4), replace(part, share=0.6)):
        assert read(other, "mark") is None
    assert read(part, "another") is None


def test_exact_decoding_is_the_first_rollout(tuned):
    from safetensors import safe_open

    out, _ = tuned
    with safe_open(next(out.glob("rollouts/*/rollout0-0000.safetensors")), framework="pt") as file:
        assert not file.get_tensor("taken").any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 1.0}, "share is 1.0, expected a share in"),
        ({"rollouts": 2}, "rollouts is 2, expected at least 3"),
        ({"prompts": PromptSettings(("playground/word_problems:4",))}, "4 prompts with 3 rollouts make 12 answers"),
        ({"rule": "judge:playground@sweep"}, "expected one rule"),
        ({"rule": "topk:2..3"}, "expected one rule"),
        ({"bench": replace(BENCH, dtype="int8")}, "dtype is 'int8'"),
        ({"bench": replace(BENCH, dtype="foo")}, "dtype is 'foo'"),
        ({"bench": replace(BENCH, device="foo")}, "device is 'foo'"),
        ({"prompts": PromptSettings(("no-such-file.jsonl",))}, "no-such-file"),
        ({"rule": "nothing:3"}, "nothing"),
    ],
)
def test_bad_settings_are_refused_before_any_work(change, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        tune(settings(**change), tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_judges_of_another_pair_or_with_hidden_layers_are_refused(tmp_path):
    build_judge().save_pretrained(tmp_path / "small")
    build_judge(hidden_units=(4,)).save_pretrained(tmp_path / "deep")
    for name, message in (("small", "trained on hidden states of size 32"), ("deep", "has hidden layers")):
        with pytest.raises(ValueError, match=message):
            tune(settings(judges=(str(tmp_path / name),)), tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match="trained on hidden states of size 32"):
        tune(settings(rule=f"judge:{tmp_path / 'small'}@0.5"), tmp_path / "out", progress=False)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    for name, message in (("model", "holds another model"), ("small", "`selfjudge tune` did not make")):
        with pytest.raises(ValueError, match=message):
            tune(settings(), tmp_path / name, progress=False)
    with pytest.raises(ValueError, match="which the new one would replace"):
        tune(settings(judges=(str(tmp_path / "small"),)), tmp_path / "small", progress=False)


def test_a_judge_without_states_is_of_every_pair(tmp_path, monkeypatch):
    build_judge(("log_p", "kl_qp")).save_pretrained(tmp_path / "scalars")
    monkeypatch.setattr(module, "explore", lambda *given: (_ for _ in ()).throw(ValueError("far enough")))
    with pytest.raises(ValueError, match="far enough"):
        tune(settings(judges=(str(tmp_path / "scalars"),)), tmp_path / "out", progress=False)


def test_a_part_that_is_gone_is_not_passed_over(tuned, tmp_path, monkeypatch):
    shutil.copytree(tuned[0], tmp_path / "out")
    done = module.explore

    def lose(explored, parts, progress):
        done(explored, parts, progress)
        parts[2].path.unlink()

    monkeypatch.setattr(module, "explore", lose)
    with pytest.raises(ValueError, match="was there and is gone"):
        tune(settings(), tmp_path / "out", progress=False)


def test_other_settings_leave_what_is_there(tuned, tmp_path, monkeypatch):
    shutil.copytree(tuned[0], tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.rglob("rollout*.safetensors")}
    monkeypatch.setattr(Worker, "run", lambda self, part: (_ for _ in ()).throw(ValueError(part.path.name)))
    with pytest.raises(ValueError, match="rollout0-0000"):
        tune(settings(seed=9), tmp_path / "out", progress=False)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("rollout*.safetensors")}


def test_open_ended_answers_count_by_their_text_alone():
    prompts = [Prompt(0, "open", "train", "?", [1]), Prompt(1, "sums", "train", "?", [1], "math", "5")]
    texts = {0: ["a b c d", "It is 5."], 1: ["a b x d", "5"], 2: ["a b c d", "It is 6."], 3: ["", "It is 5."]}
    inputs = torch.zeros(2, len(SCALARS))
    decisions = Decisions(torch.tensor([0, 1]), torch.tensor([True, False]), torch.zeros(2).long(), inputs)
    found = {
        Part(number, (0, 1), Path(f"{number}"), 0, 0.5): Rollout(texts[number], [4, 3], decisions)
        for number in range(4)
    }
    words = {}
    evidence, counts = collect(
        prompts, found, 0.5, lambda text: [words.setdefault(w, len(words)) for w in text.split()]
    )
    assert evidence.prompts.tolist() == [0, 1] * 3
    assert evidence.resemblance.tolist() == pytest.approx([0.75, 0.0, 1.0, 2 / 3, 0.0, 1.0])
    assert evidence.kept[::2].isnan().all()
    assert evidence.kept[1::2].tolist() == [1.0, 0.0, 1.0]
    assert evidence.decisions.sequences.tolist() == [0, 1, 2, 3, 4, 5]
    assert [counts["exact_kept"], counts["kept"], counts["new_tokens"]] == [1.0, pytest.approx(2 / 3), 28]


def test_the_command_says_what_is_wrong(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["tune", "--prompts", "no-such-file.jsonl", "--max-new-tokens", "100", "--out", str(tmp_path / "out")])
    assert "no-such-file" in capsys.readouterr().err
