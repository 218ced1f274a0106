"""Categories of substitutions."""

import pytest

from hf_selfjudge.report.categories import CATEGORIES, category


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        (".", ".\n\n", "white space"),
        ("\n", "\n\n", "white space"),
        (" To", "\n", "white space"),
        (" the", "the", "white space"),
        (" Statement", " statement", "case"),
        (" 7", " 8", "digits"),
        ("1", " We", "digits"),
        (" **", " the", "markdown"),
        ("##", "#", "markdown"),
        ("```", "`", "markdown"),
        ("---", "The", "markdown"),
        (" x", " *", "operators"),
        ("==", "!=", "operators"),
        (" /", " per", "operators"),
        (".", ",", "punctuation"),
        (" (", " the", "punctuation"),
        (" a", " the", "function words"),
        (" in", " per", "function words"),
        (" solve", " find", "other words"),
        (" the", " number", "other words"),
        (" caf\u00e9", " \u5496\u5561", "other words"),
    ],
)
def test_category(target, draft, expected):
    assert category(target, draft) == expected
    assert expected in CATEGORIES


def test_the_end_of_a_text_is_its_own_category():
    assert category(" The", "<eos>", ends=True) == "end of text"
