"""The playground's tokenizer and the corpus made with it."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from hf_selfjudge.playground.corpus import Batches, Corpus, CorpusConfig, build_corpus, prepare_corpus
from hf_selfjudge.playground.tokenizer import build_tokenizer, chat
from hf_selfjudge.playground.world import TASKS, generate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(1024, 200).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def items():
    return [item for task in TASKS for item in generate(task, "test", 20)]


def test_it_is_deterministic(folder):
    again = build_tokenizer(1024, 200)
    assert again.backend_tokenizer.to_str() == build_tokenizer(1024, 200).backend_tokenizer.to_str()
    assert again.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()


def test_texts_survive_the_round_trip(tokenizer, items):
    for item in items:
        for text in (item.prompt, item.response, "Grüße, 東京! 1,200"):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens(tokenizer):
    for token in tokenizer.get_vocab():
        assert sum(character.isdigit() for character in token) <= 1
    assert tokenizer.tokenize("is 1234.")[-5:] == ["Ġ1", "2", "3", "4", "."]


def test_chat_template(tokenizer, items):
    for item in items[::10]:
        messages = [{"role": "user", "content": item.prompt}]
        asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert asked == f"<|bos|><|user|>{item.prompt}<|end|><|assistant|>"
        messages.append({"role": "assistant", "content": item.response})
        assert tokenizer.apply_chat_template(messages, tokenize=False) == chat(item.prompt, item.response)
    ids = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == item.prompt
    with pytest.raises(Exception, match="not system"):
        tokenizer.apply_chat_template([{"role": "system", "content": "x"}], tokenize=False)


def test_a_small_vocabulary_is_refused():
    with pytest.raises(ValueError, match="too small"):
        build_tokenizer(100)


def test_corpus_is_kept_and_made_again_when_it_changes(folder, tmp_path):
    config = CorpusConfig(items=40)
    first = prepare_corpus(config, folder, tmp_path)
    stamp = (tmp_path / "tokens.npy").stat().st_mtime_ns
    second = prepare_corpus(config, folder, tmp_path)
    assert (tmp_path / "tokens.npy").stat().st_mtime_ns == stamp
    assert np.array_equal(first.tokens, second.tokens)
    other = prepare_corpus(CorpusConfig(items=40, fidelity=0.0), folder, tmp_path)
    assert not np.array_equal(first.tokens, other.tokens)


def test_corpus_holds_chats_with_their_prompt_lengths(folder, tokenizer):
    corpus = build_corpus(CorpusConfig(items=40), folder)
    assert len(corpus.prompts) == 40
    for row, prompt in enumerate(corpus.prompts):
        ids = corpus.tokens[corpus.starts[row] : corpus.starts[row + 1]]
        assert tokenizer.decode(ids[prompt - 1]) == "<|assistant|>"
        assert ids[-1] == tokenizer.eos_token_id


def test_every_conversation_comes_once_per_epoch():
    lengths = np.array([5, 17, 16, 40, 33, 5, 6])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    marks = np.repeat(np.arange(1, 8), lengths).astype(np.uint16)
    corpus = Corpus(marks, starts, np.full(7, 2, dtype=np.int16))
    batches = Batches(corpus, 256, seed=3, pad=0, device=torch.device("cpu"))
    rows = []
    for number in range(batches.per_epoch):
        ids, answer = batches(number)
        assert ids.shape == answer.shape
        assert ids.shape[1] % Batches.WIDTH == 0
        rows += [(int(row[0]), int((row > 0).sum()), int(mask.sum())) for row, mask in zip(ids, answer, strict=True)]
    assert sorted(rows) == [(i + 1, n, n - 2) for i, n in enumerate(lengths)]
    again = Batches(corpus, 256, seed=3, pad=0, device=torch.device("cpu"))
    assert torch.equal(again(batches.per_epoch + 1)[0], batches(batches.per_epoch + 1)[0])
