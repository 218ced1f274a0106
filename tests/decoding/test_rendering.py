"""Colours follow the sources, and characters spelt by several tokens stay whole."""

import io

import pytest
from rich.console import Console
from tiny import prompts

from hf_selfjudge import JudgeStats, render_response
from hf_selfjudge.decoding.rendering import STYLES, legend, print_response
from hf_selfjudge.decoding.statistics import Source

M, J, C, B = Source.MATCHED, Source.JUDGED, Source.CORRECTION, Source.BONUS


def stats_with(sources):
    stats = JudgeStats()
    stats.sources = list(sources)
    return stats


def spans(text):
    """(piece, style) in order."""
    return [(text.plain[span.start : span.end], span.style) for span in text.spans]


def test_each_token_has_the_colour_of_its_source(tokenizer):
    tokens = [tokenizer.get_vocab()[piece] for piece in ("t", "h", "e", "Ġ")]
    text = render_response(tokens, stats_with([M, J, C, B]), tokenizer)
    assert spans(text) == [("t", STYLES[M]), ("h", STYLES[J]), ("e", STYLES[C]), (" ", STYLES[B])]
    assert len(set(STYLES.values())) == 4


def test_pieces_of_one_character_are_decoded_together(tokenizer):
    vocab = tokenizer.get_vocab()
    tokens = [vocab["c"], vocab["Ã"], vocab["©"], vocab["s"]]
    text = render_response(tokens, stats_with([M, M, J, C]), tokenizer)
    assert text.plain == tokenizer.decode(tokens) == "cés"
    assert spans(text) == [("c", STYLES[M]), ("é", STYLES[J]), ("s", STYLES[C])]


def test_a_broken_character_does_not_swallow_what_follows(tokenizer):
    """A lone byte is no character in any company: the tokens behind it keep their own colours."""
    vocab = tokenizer.get_vocab()
    tokens = [vocab["Ã"], *(vocab[letter] for letter in "these")]
    text = render_response(tokens, stats_with([C, M, M, M, M, J]), tokenizer)
    assert text.plain == "\ufffdthese"
    assert spans(text)[-1] == ("e", STYLES[J])
    assert ("s", STYLES[M]) in spans(text)


def test_a_real_response_renders_to_its_text(pair, tokenizer):
    prompt = prompts(1, seed=50)[0]
    out = pair.judged(prompt, "topk:5", 20)
    tokens = out.sequences[0, prompt.shape[1] :].tolist()
    assert render_response(tokens, out.judge_stats, tokenizer).plain == tokenizer.decode(tokens)


def test_tokens_and_statistics_of_different_calls(tokenizer):
    with pytest.raises(ValueError, match="3 tokens were given, but the statistics tell of 2"):
        render_response([5, 6, 7], stats_with([M, M]), tokenizer)


def test_printing_adds_the_legend(tokenizer):
    console = Console(file=io.StringIO(), width=200)
    print_response([tokenizer.get_vocab()["t"]], stats_with([J]), tokenizer, console)
    printed = console.file.getvalue()
    assert printed.startswith("t\n")
    for meaning in ("draft, matches", "accepted by the judge", "correction", "bonus"):
        assert meaning in printed
    assert {span.style for span in legend().spans} == set(STYLES.values())
