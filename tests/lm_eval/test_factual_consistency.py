"""Factual consistency by a stand-in whose classes are known, and where sentences end."""

import pytest
import torch
from nli_stand_in import save_stand_in

from hf_selfjudge.lm_eval.factual_consistency import consistency, label_order, split_sentences

ORDERS = [("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")]


@pytest.mark.parametrize("order", ORDERS)
def test_entailed_minus_contradicted_sentences_whatever_the_label_order(order, tmp_path):
    model = save_stand_in(tmp_path, list(order))
    article = "some words " * 40  # longer than the model reads
    for summary, expected, count in (
        ("This is true.", 1.0, 1),
        ("This is false.", -1.0, 1),
        ("This is maybe.", 0.0, 1),
        ("A is true. B is true. C is false. D is maybe.", 0.25, 4),
        ("", 0.0, 0),
        ("...", 0.0, 0),
    ):
        found = consistency(article, summary, model)
        assert (found.by_class, found.sentences) == (expected, count)
    certain = torch.tensor([4.0, 0.0, 0.0]).softmax(-1)  # the norm doubles the embedding, the head does so again
    found = consistency(article, "This is true.", model)
    assert found.by_probability == pytest.approx(float(certain[0] - certain[1]), abs=1e-3)


def test_many_sentences_go_through_several_batches(tmp_path):
    model = save_stand_in(tmp_path, list(ORDERS[0]))
    found = consistency("words", "It is true. " * 30 + "It is false. " * 10, model)
    assert (found.by_class, found.sentences) == (0.5, 40)


def test_label_order_comes_from_the_config():
    assert label_order({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}) == {
        "contradiction": 0, "neutral": 1, "entailment": 2,
    }  # fmt: skip
    assert label_order({0: "entailment", 1: "not_entailment", 2: "contradiction"})["entailment"] == 0
    with pytest.raises(ValueError, match="LABEL_0"):
        label_order({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Mr. Smith met Dr. J. Jones in the U.S. He left.", ["Mr. Smith met Dr. J. Jones in the U.S. He left."]),
        ("Mr. Smith of the U.S. won 3.5 million. He left.", ["Mr. Smith of the U.S. won 3.5 million.", "He left."]),
        ('"It is over." He left at 2.30 p.m. with her.', ['"It is over."', "He left at 2.30 p.m. with her."]),
        ("- First point\n- Second point.\n\n3. Third one", ["First point", "Second point.", "Third one"]),
        ("Cut off in the", ["Cut off in the"]),
        ("  \n ... \n", []),
    ],
)  # fmt: skip
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences
