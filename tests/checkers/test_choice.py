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
    ("The answer is 'B'.", "B"),
    ("The answer is \u2018B\u2019.", "B"),
    ("The answer is 'b'.", "B"),
    (r"The answer is \(B\).", "B"),
    (r"So it must be \((B)\).", "B"),
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
    # no letter: those that a text talks about on its way are no choices
    ("Let A and B be events.\nThen the sum of both is", None),
    ("Here (A) says that it rains. Therefore", None),
    ("Option C: it holds. However, the other one does not\n", None),
    (r"The field is then \( B = F / q \) and", None),
    (r"We find \[ P(A | B) = \frac{P(A", None),
    ("All of A, B and C hold.\n\nThe answer is (None).", None),
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


def test_letters_beyond_the_options_are_no_outcomes():
    reference = {"answer": "B", "options": 4}
    assert choice.outcome("The answer is (E).", reference) is None
    assert choice.outcome("Force F is larger, so (B)", reference) == "B"
    assert choice.outcome("The answer is (E).", {"answer": "E"}) == "E"
    assert choice.correct("B", reference)
    assert choice.correct("B", {"answer": 1, "options": 4})
    assert not choice.correct("C", reference)


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
