"""A stand-in for an NLI model whose classes are known: the last word of a sentence says what it is."""

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

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
