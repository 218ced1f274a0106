"""Which letter a response settles on."""

import pytest

from hf_selfjudge.checkers import choice

FOUND = [
    ("B", "B"),
    ("b", "B"),
    ("B.", "B"),
    ("(b)", "B"),
    ("**B**", "B"),
    ("__B__", "B"),
    ("{B}", "B"),
    ("C) Paris", "C"),
    ("B. Because Paris is big (A is wrong).", "B"),
    ("The answer is (B).", "B"),
    ("The answer is B: 12 apples", "B"),
    ("The answer is A because it is red", "A"),
    ("the answer is option (b), since", "B"),
    ('The answer is "B".', "B"),
    ("The answer is\n\nB", "B"),
    ("answer is: $B$", "B"),
    ("Answer:B", "B"),
    ("ANSWER: b", "B"),
    ("Answer = D", "D"),
    ("Answer: C) 12", "C"),
    ("Answer: I", "I"),
    ("**Answer: A**", "A"),
    ("The answer: **(D)**", "D"),
    ("The correct answer is **D. Paris**", "D"),
    ("The correct answer is letter D.", "D"),
    ("correct choice - A", "A"),
    ("The right option is: `C`", "C"),
    ("Hence the answer must be E", "E"),
    ("The best choice for this question would be option (C).", "C"),
    ("Final Answer: The final answer is (B). I hope it is correct.", "B"),
    ("[answer]C[/answer]", "C"),
    ("[answer](d)[/answer] and not (A)", "D"),
    ("<answer>B</answer>", "B"),
    (r"\boxed{A}", "A"),
    (r"$\boxed{\text{(E)}}$", "E"),
    (r"$\boxed{\textbf{(B) } 7}$", "B"),
    ("Option B is correct.", "B"),
    ("B is the correct answer", "B"),
    ("I would go with B", "B"),
    ("We can select C", "C"),
    ("It's B.", "B"),
    ("therefore, A.", "A"),
    # what is said last, in the clearest form
    ("The answer is (A) or maybe not... no, the answer is (B)", "B"),
    ("The answer is not B. It is C.", "C"),
    ("The answer is a bit unclear, but I pick C.", "C"),
    ("The answer is I think B", "B"),
    ("A. wrong\nB. wrong\nC. right\nD. wrong\nThe answer is C", "C"),
    ("A. wrong\nB. maybe\nSo (B)", "B"),
    ("I think A is wrong.\n\nTherefore D", "D"),
    ("(A) is false. (C) holds.", "C"),
    ("Option A and C are wrong; B fits.", "B"),
    ("**(C) 42** fits best", "C"),
    # no letter
    ("A dog is an animal.", None),
    ("I do not know.", None),
    ("I'd rather not say.", None),
    ("The answer is Argentina", None),
    ("42", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "letter"), FOUND)
def test_the_letter_is_found(response, letter):
    assert choice.outcome(response) == letter


def test_letters_and_indices_as_references():
    assert choice.correct("B", "B")
    assert choice.correct("B", "(b)")
    assert choice.correct("B", 1)
    assert not choice.correct("B", 0)
    assert not choice.correct(None, "A")
    assert choice.same("A", "A")
    assert not choice.same("A", "B")
    for wrong in ("Paris", 17, ""):
        with pytest.raises(ValueError, match="expected a letter"):
            choice.correct("B", wrong)
