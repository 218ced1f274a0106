"""The solvers against scikit-learn, and the comparison of judges against its definition."""

import json

import pytest
import torch

from hf_selfjudge.config import AHEAD_FEATURES, SCALAR_FEATURES
from hf_selfjudge.judge import SelfJudgeVerifier
from hf_selfjudge.pipeline.fit import FitResult, choose, expand, fit, fit_one
from hf_selfjudge.pipeline.records import Substitutions
from hf_selfjudge.pipeline.settings import FitSettings
from hf_selfjudge.pipeline.training import linear_models
from hf_selfjudge.pipeline.training.comparison import compare
from hf_selfjudge.pipeline.training.judges import class_weights
from hf_selfjudge.pipeline.training.labelled_rows import TRAIN, VALIDATION, LabelledRows
from hf_selfjudge.pipeline.training.linear_models import C_GRID, Columns, linear_state, logistic_path, ridge_path
from hf_selfjudge.pipeline.training.metrics import auc

HIDDEN = 6
QUICK = FitSettings(feature_sets=("paper", "hidden+scalars"), seeds=1)


def substitutions(prompts: int = 60, each: int = 8, originals: bool = False, seed: int = 0) -> Substitutions:
    """Features of very different scale, one of them constant; the score depends on the hidden state and s_prefix."""
    generator = torch.Generator().manual_seed(seed)
    rows = prompts * each
    hidden = torch.randn(rows, HIDDEN, generator=generator)
    names = ("previous_hidden", *SCALAR_FEATURES)
    features = {
        "hidden": hidden * torch.tensor([1.0, 100.0, 0.01, 1.0, 5.0, 0.0]) + torch.tensor([0, 30.0, 0, 5, 1, 2])
    }
    for name in names:
        shape = (rows, HIDDEN) if name == "previous_hidden" else (rows,)
        features[name] = torch.randn(shape, generator=generator)
    prefix = features["s_prefix"] - 2
    signal = 2 * hidden[:, 0] - hidden[:, 2] + 0.5 * torch.randn(rows, generator=generator)
    likelihood = torch.stack([torch.zeros(rows), 2 * signal, 5 * signal], dim=1)
    return Substitutions(
        prompt_ids=torch.arange(prompts).repeat_interleave(each),
        positions=torch.arange(each).repeat(prompts),
        target_tokens=torch.randint(50, (rows,), generator=generator),
        draft_tokens=torch.randint(50, (rows,), generator=generator),
        ranks=torch.zeros(rows, dtype=torch.long),
        prefix=prefix,
        suffix_tokens=torch.tensor([0, 5, 20]).expand(rows, 3).contiguous(),
        likelihood=likelihood,
        confidence=likelihood * 0.5,
        features=features,
        original_features={name: column + 3.0 for name, column in features.items()} if originals else {},
        lengths=(0, 5, 20),
    )


def labelled(table: Substitutions, share: float = 0.3) -> tuple[torch.Tensor, list[str]]:
    """Labels by a quantile of the score, and splits by prompt."""
    scores = table.score(20)
    labels = (scores > torch.quantile(scores, 1 - share)).to(torch.int8)
    return labels, [("train", "train", "train", "validation", "calibration")[p % 5] for p in table.prompt_ids.tolist()]


def masks(splits: list[str]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([split == name for split in splits]) for name in ("train", "validation", "calibration")}


def sklearn_probability(x, y, rows, c: float, balanced: bool = False):
    """scikit-learn's own scaler and logistic regression, solved to the end."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(C=c, tol=1e-9, max_iter=20000, class_weight="balanced" if balanced else None)
    pipeline = make_pipeline(StandardScaler(), model).fit(x.double().numpy(), y.numpy())
    return torch.from_numpy(pipeline.predict_proba(rows.double().numpy())[:, 1])


# -- solvers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("balanced", [False, True])
def test_logistic_regression_is_scikit_learns(monkeypatch, wide, balanced):
    """Both with a fresh Hessian in float64 and with the shared Gram matrix in float32, as wide problems have it."""
    if wide:
        monkeypatch.setattr(linear_models, "DOUBLE_LIMIT", 0)
        monkeypatch.setattr(linear_models, "EXACT_LIMIT", 0)
    mix = torch.randn(40, 40) / (1 + torch.arange(40.0))[:, None]  # correlated columns
    x = torch.randn(300, 40) @ mix * 7 + 3
    y = x[:, 0] + 4 * torch.randn(300) > 5
    columns = Columns.of(x)
    assert columns.values.dtype == (torch.float32 if wide else torch.float64)
    for c, solution, converged in logistic_path(columns, y, class_weights(y, balanced), C_GRID):
        assert converged
        state = linear_state(columns, solution)
        ours = torch.sigmoid(x @ state["layers.0.weight"][0] + state["layers.0.bias"])
        theirs = sklearn_probability(x, y, x, c, balanced)
        assert (ours - theirs).abs().max() < (1e-3 if wide else 1e-5)


def test_ridge_is_scikit_learns():
    from sklearn.linear_model import Ridge

    x, target = torch.randn(200, 7).double() * 3 + 1, torch.randn(200).double()
    columns = Columns.of(x)
    for c, solution in ridge_path(columns, target, (0.001, 1.0, 100.0)):
        model = Ridge(alpha=1 / c).fit(columns.values[:, :-1].numpy(), target.numpy())
        torch.testing.assert_close(solution[:-1], torch.from_numpy(model.coef_), atol=1e-8, rtol=1e-6)
        assert float(solution[-1]) == pytest.approx(float(model.intercept_))


def test_auc_is_scikit_learns():
    from sklearn.metrics import roc_auc_score

    values, labels = torch.rand(500).round(decimals=1), torch.rand(500) > 0.7  # many ties
    assert auc(values, labels) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


# -- the whole fit ----------------------------------------------------------------------------------------------------


def test_the_state_is_the_pipelines_judge():
    table = substitutions()
    labels, splits = labelled(table)
    found = fit(table, labels, splits, QUICK)
    assert found.winner["feature_set"] == "hidden+scalars"
    x, part, y = table.matrix(found.features), masks(splits), labels == 1
    expected = sklearn_probability(x[part["train"]], y[part["train"]], x, found.winner["c"])
    judge = SelfJudgeVerifier(found.judge().config)
    judge.load_state_dict(found.state)
    assert (judge.probability(x) - expected).abs().max() < 1e-5
    assert torch.equal(judge.probability(x), found.probability(table))
    # C is the best of the grid on the validation rows, and AUC that of these rows only
    grid = {}
    for c in C_GRID:
        probability = sklearn_probability(x[part["train"]], y[part["train"]], x[part["validation"]], c)
        grid[c] = auc(probability, y[part["validation"]])
    assert grid[found.winner["c"]] == pytest.approx(max(grid.values()), abs=1e-9)
    assert found.winner["auc"] == [pytest.approx(grid[found.winner["c"]], abs=1e-6)]
    rows = part["calibration"]
    assert found.winner["calibration_auc"] == pytest.approx(auc(expected[rows], y[rows]), abs=1e-6)
    assert found.winner["rows"] == int(part["train"].sum())
    assert found.winner["columns"] == HIDDEN + len(SCALAR_FEATURES)
    assert found.paper is found.table[0]
    assert found.paper["mean"] < found.winner["mean"]


def test_a_result_survives_json():
    table = substitutions(30)
    labels, splits = labelled(table)
    found = fit(table, labels, splits, QUICK)
    again = FitResult.from_dict(json.loads(json.dumps(found.to_dict())), found.state)
    assert again == found
    judge = found.judge(thresholds={"f1": 0.4}, default_threshold="f1")
    assert (judge.threshold, judge.config.features, judge.config.hidden_size) == (0.4, found.features, HIDDEN)


@pytest.mark.parametrize("model", ["mlp", "regression"])
def test_other_models_learn_and_load(model):
    table = substitutions()
    labels, splits = labelled(table)
    settings = FitSettings(seeds=1, hidden_units=16)
    found = fit_one(table, labels, splits, "hidden+scalars", model, settings, seed=3)
    assert found.hidden_units == ((16,) if model == "mlp" else ())
    rows = masks(splits)["calibration"]
    probability, truth = found.judge().probability(table.matrix(found.features)[rows]), labels[rows] == 1
    assert auc(probability, truth) > 0.9
    assert auc(probability, truth) == pytest.approx(found.winner["calibration_auc"])
    assert float(probability.mean()) == pytest.approx(
        float(truth.float().mean()), abs=0.12
    )  # a probability, not a score
    again = fit_one(table, labels, splits, "hidden+scalars", model, settings, seed=3)
    assert all(torch.equal(again.state[name], tensor) for name, tensor in found.state.items())


def test_class_weights_count():
    table = substitutions()
    labels, splits = labelled(table, share=0.1)
    plain = fit_one(table, labels, splits, "scalars", settings=FitSettings(seeds=1))
    balanced = fit_one(table, labels, splits, "scalars", settings=FitSettings(seeds=1, balanced=True))
    assert balanced.probability(table).mean() > plain.probability(table).mean() + 0.1


def test_undecided_rows_count_nowhere():
    table = substitutions()
    labels, splits = labelled(table)
    undecided = torch.rand(len(table)) < 0.3
    some = torch.where(undecided, -1, labels).to(torch.int8)
    kept = (~undecided).nonzero()[:, 0]
    ours = fit(table, some, splits, QUICK)
    theirs = fit(table.select(kept), labels[kept], [splits[row] for row in kept.tolist()], QUICK)
    assert ours.table == theirs.table
    assert all(torch.equal(ours.state[name], theirs.state[name]) for name in ours.state)


def test_originals_are_trained_on_but_not_measured():
    table = substitutions(originals=True)
    labels, splits = labelled(table)
    found = fit_one(table, labels, splits, "paper", rows="with-originals", settings=FitSettings(seeds=1))
    part, y = masks(splits), labels == 1
    x = table.matrix(["hidden"])
    more = torch.cat([x[part["train"]], table.matrix(["hidden"], original=True)[part["train"]]])
    truth = torch.cat([y[part["train"]], torch.ones(int(part["train"].sum()), dtype=torch.bool)])
    expected = sklearn_probability(more, truth, x, found.winner["c"])
    assert (found.probability(table) - expected).abs().max() < 1e-5
    assert found.winner["auc"][0] == pytest.approx(auc(expected[part["validation"]], y[part["validation"]]), abs=1e-6)
    assert found.winner["rows"] == 2 * int(part["train"].sum())


def test_several_substitutions_of_a_position_share_one_original():
    table = substitutions(originals=True)
    table.positions.copy_(table.positions // 2)
    labels, splits = labelled(table)
    found = fit_one(table, labels, splits, "paper", rows="with-originals", settings=FitSettings(seeds=1))
    assert found.winner["rows"] == 1.5 * int(masks(splits)["train"].sum())


def test_further_divisions_move_whole_prompts_and_never_calibration():
    table = substitutions(50)
    labels, splits = labelled(table)
    rows = LabelledRows.of(table, labels, splits, "mismatch", None)
    given, divisions = rows.splits, [rows.division(number, 7) for number in (1, 2)]
    assert torch.equal(rows.division(0, 7), given)
    assert not torch.equal(*divisions)
    for other in divisions:
        assert not torch.equal(other, given)
        assert torch.equal(other == 2, given == 2)
        assert (other == VALIDATION).sum() == (given == VALIDATION).sum()
        assert all(len(other[table.prompt_ids == prompt].unique()) == 1 for prompt in range(50))
    found = compare(rows, "scalars", ("s_prefix", "log_p"), FitSettings(seeds=3), 7, "cpu")[0]
    x, y = table.matrix(("s_prefix", "log_p")), labels == 1
    for number, value in enumerate(found.auc):
        at = rows.division(number, 7)
        train, test = at == TRAIN, at == VALIDATION
        assert value == pytest.approx(auc(sklearn_probability(x[train], y[train], x[test], found.trained.c), y[test]))
    entry = found.entry()
    assert entry["sd"] == pytest.approx(float(torch.tensor(found.auc, dtype=torch.float64).std()))


def test_labels_of_other_scores_have_the_same_share():
    table = substitutions()
    labels, splits = labelled(table)
    found = fit(table, labels, splits, QUICK)
    kinds = [(entry["length"], entry["suffix"], entry["reduction"]) for entry in found.variants]
    assert len(kinds) == len(set(kinds)) == 1 + 2 * 4
    own = found.variants[kinds.index((20, "likelihood", "sum"))]
    assert own["agreement"] > 0.98
    assert own["auc"] == pytest.approx(found.winner["auc"][0], abs=0.02)
    assert found.variants[kinds.index((0, "likelihood", "sum"))]["auc"] > 0.97  # N = 0 is a feature of the judge


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_feature_sets():
    assert expand("paper") == expand("hidden") == ("hidden",)
    assert expand("hidden+previous+scalars") == ("hidden", "previous_hidden", *SCALAR_FEATURES)
    assert expand("ahead+next") == (*AHEAD_FEATURES, "next_hidden")
    assert expand("log_p+scalars") == SCALAR_FEATURES
    assert not set(expand("scalars")) & set(AHEAD_FEATURES)
    with pytest.raises(ValueError, match="Unknown feature 'entrpy' in 'hidden\\+entrpy'"):
        expand("hidden+entrpy")


def test_the_simpler_judge_wins_a_tie():
    def entry(model, mean, columns=5):
        return {"model": model, "mean": mean, "sd": 0.02, "columns": columns}

    linear, near, far = entry("logistic", 0.90), entry("mlp", 0.909), entry("mlp", 0.92)
    assert choose([linear, near]) is linear
    assert choose([linear, far]) is far
    assert choose([entry("logistic", 0.9, 50), linear]) is linear


def test_sets_without_their_features_are_skipped_with_a_note():
    table = substitutions(30)
    labels, splits = labelled(table)
    found = fit(table, labels, splits, FitSettings(feature_sets=("hidden+next", "paper", "ahead"), seeds=1))
    assert [entry["feature_set"] for entry in found.table] == ["paper"]
    assert len(found.notes) == 2
    assert "next_hidden" in found.notes[0]
    with pytest.raises(ValueError, match="next_hidden not kept"):
        fit_one(table, labels, splits, "next")


def test_a_judge_of_scalars_alone_needs_to_be_told_the_width():
    table = substitutions(30)
    labels, splits = labelled(table)
    for name in ("hidden", "previous_hidden"):
        del table.features[name]
    found = fit_one(table, labels, splits, "scalars", settings=FitSettings(seeds=1))
    assert found.probability(table).shape == (len(table),)
    with pytest.raises(ValueError, match="hidden_size"):
        found.judge()
    assert found.judge(hidden_size=64).config.hidden_size == 64


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused():
    table = substitutions(20)
    labels, splits = labelled(table)
    part = masks(splits)
    with pytest.raises(ValueError, match="train rows are all unacceptable"):
        fit(table, torch.zeros_like(labels), splits, QUICK)
    with pytest.raises(ValueError, match="validation rows are all acceptable"):
        fit(table, torch.where(part["validation"], 1, labels), splits, QUICK)
    with pytest.raises(ValueError, match="no decided validation rows"):
        fit(table, torch.where(part["validation"], -1, labels), splits, QUICK)
    with pytest.raises(ValueError, match="'test', expected one of train"):
        fit(table, labels, ["test", *splits[1:]], QUICK)
    with pytest.raises(ValueError, match="Prompt 0 is in two splits"):
        fit(table, labels, ["validation", *splits[1:]], QUICK)
    with pytest.raises(ValueError, match="160 substitutions, 159 labels"):
        fit(table, labels[1:], splits, QUICK)
    with pytest.raises(ValueError, match="originals=True"):
        fit(table, labels, splits, QUICK, rows="with-originals")
    table.features["hidden"][3, 2] = float("nan")
    with pytest.raises(ValueError, match=r"Column 2 of the features \['hidden'\]"):
        fit(table, labels, splits, QUICK)


def test_splits_may_be_numbers():
    table = substitutions(20)
    labels, splits = labelled(table)
    numbers = torch.tensor([("train", "validation", "calibration").index(split) for split in splits])
    assert fit(table, labels, numbers, QUICK).table == fit(table, labels, splits, QUICK).table
