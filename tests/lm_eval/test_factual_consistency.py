"""Factual consistency by a stand-in whose classes are known: the last word of a sentence says what it is."""

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

from hf_selfjudge.lm_eval.factual_consistency import consistency, label_order, split_sentences

WORDS = ["<pad>", "<unk>", "true", "false", "maybe"]


def save_stand_in(folder, order):
    """A classifier without layers: the sentence that ends in true is entailment, in false contradiction."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(".", "removed"), pre_tokenizers.WhitespaceSplit()]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=5, hidden_size=4, intermediate_size=4, num_hidden_layers=0, num_attention_heads=1,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=None, eos_token_id=None,
        id2label=dict(enumerate(order)), label2id={name: index for index, name in enumerate(order)},
    )  # fmt: skip
    model = LlamaForSequenceClassification(config)
    meaning = {"true": "ENTAILMENT", "false": "CONTRADICTION", "maybe": "NEUTRAL"}
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
        model.score.weight.zero_()
        for place, (word, label) in enumerate(meaning.items()):
            model.model.embed_tokens.weight[WORDS.index(word), place] = 1.0
            model.score.weight[order.index(label), place] = 2.0
    model.save_pretrained(folder)
    return str(folder)


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
        ("Mr. Smith of the U.S. team won 3.5 million. He left.", ["Mr. Smith of the U.S. team won 3.5 million.", "He left."]),
        ('"It is over." He left at 2.30 p.m. with her.', ['"It is over."', "He left at 2.30 p.m. with her."]),
        ("- First point\n- Second point.\n\n3. Third one", ["First point", "Second point.", "Third one"]),
        ("Cut off in the", ["Cut off in the"]),
        ("  \n ... \n", []),
    ],
)  # fmt: skip
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences
