"""The README.md of a judge folder."""

from huggingface_hub import ModelCard
from tiny import build_judge

from hf_selfjudge.config import ModelReference


def test_card_tells_pair_thresholds_and_labels(tmp_path):
    judge = build_judge(
        features=("hidden", "s_prefix"),
        thresholds={"f1": 0.25, "recall": 0.75},
        default_threshold="recall",
        target=ModelReference("org/target"),
        draft=ModelReference("org/draft"),
        labels={"tau": -4.5},
        metrics={"validation_auc": 0.8},
    )
    judge.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "hf-selfjudge"
    assert card.data.base_model == ["org/target", "org/draft"]
    assert "| `recall` (default) | 0.7500 | 0.2500 |" in card.text
    assert "| `f1` | 0.2500 | 0.7500 |" in card.text
    for part in ("hidden, s_prefix", "tau: -4.5", "validation_auc: 0.8", "`org/target`"):
        assert part in card.text


def test_a_hand_edited_card_is_kept(tmp_path):
    judge = build_judge()
    (tmp_path / "README.md").write_text("mine")
    judge.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_judge_of_an_unnamed_pair_has_a_card():
    card = build_judge().generate_model_card()
    assert card.data.base_model is None
    assert "an unnamed pair" in card.text
