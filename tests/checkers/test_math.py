"""Final answers: where they are found, and which ones are the same."""

import pytest

from hf_selfjudge.checkers import math

FOUND = [
    # the last box that is closed and not empty
    (r"So \boxed{72}.", "72"),
    (r"First \boxed{3}, then \boxed{\dfrac{3}{\sqrt{4}}}", "3/sqrt(4)"),
    (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", "(3,pi/2)"),
    (r"\[ \boxed{-\frac{1}{2}} \]", "-1/2"),
    (r"$\boxed 7$", "7"),
    (r"\fbox{12}", "12"),
    (r"\boxed{4} or rather \boxed{}", "4"),
    (r"\boxed{12", "12"),
    (r"\boxed{5} in 10 steps", "5"),
    # GSM8K's line, and headings that look like it
    ("10 - 3 = 7\n#### 7", "7"),
    ("#### 1,234", "1234"),
    ("#### $18.00", "18"),
    ("####-5", "-5"),
    ("#### 72 clips", "72"),
    ("#### Step 1: add\n3 + 4 = 7\nThe answer is 7.", "7"),
    ("#### 1. Compute\nwhich gives 12", "12"),
    # tags
    ("[answer]42[/answer] in 7 steps", "42"),
    ("[answer]1[/answer] no: [ANSWER] $1,000 [/ANSWER]", "1000"),
    ("<answer>0.50</answer>", "1/2"),
    ("[answer] 3*4=12 [/answer]", "12"),
    # statements
    ("The answer is 3.5.", "7/2"),
    ("The answer is: **-7**. I used 3 steps.", "-7"),
    ("**Final Answer:** $42$", "42"),
    ("Final answer:\n\n$$\\frac{3}{4}$$", "3/4"),
    ("The answer is 5 apples because 3+2=5", "5"),
    ("The answer is that John has 5 apples left.", "5"),
    ("The final answer to the question is 12 dollars", "12"),
    ("the answer is x = 5", "5"),
    ("The answer is (3, 4).", "(3,4)"),
    ("The answer is 18 dollars per day.", "18"),
    ("The answer is 1/3 of the cake", "1/3"),
    ("The answer is 25 \\% of it.", "25"),
    ("The answer was 1. But no, the answer is 2.", "2"),
    ('"The answer is 45"', "45"),
    ('"The answer is 45."', "45"),
    ('The answer is "45".', "45"),
    ("The answer is '45'.", "45"),
    ("The answer is `45`.", "45"),
    ("The answer is (45).", "45"),
    ("The answer is [45].", "45"),
    ("The answer is 45!", "45"),
    ("The answer is 5! = 120 ways to do it.", "120"),
    ("The answer is 45 m.", "45"),
    ("The answer is 45 km/h.", "45"),
    ("The answer is 1/2 cup.", "1/2"),
    ("The answer is about 45.", "45"),
    (r"The answer is \(\approx 45\).", "45"),
    ("The answer is 30 + 15 = 45 apples in total.", "45"),
    ("The answer is 30 red apples + 15 green apples = 45 apples.", "45"),
    ("The answer is 9 x 2 = $18 per day.", "18"),
    ("The answer is 9 x 2 = $18.", "18"),
    ("The answer is 45 of the apples because 46 = 45 + 1", "45"),
    ("The answer is:\n$$\n\\frac{3}{4}\n$$", "3/4"),
    ("The answer is:\n\\[\nx = \\frac{3}{4}\n\\]\nin 5 steps", "3/4"),
    (r"The answer is $\begin{pmatrix} 1 \\ 2 \end{pmatrix}$.", "(1;2)"),
    (r"[answer]\(\begin{pmatrix} 1 \\ 2 \end{pmatrix}\)[/answer]", "(1;2)"),
    (r"[answer]\[\begin{bmatrix}1 & 2\end{bmatrix}\][/answer]", "(1,2)"),
    (r"[answer]\mathbf{v} = \mathrm{span}(1, 2)[/answer]", "span(1,2)"),
    (r"The answer is $11,\! 111,\! 100$.", "11111100"),
    (r"\boxed{45\,}", "45"),
    (r"\boxed{45\ }", "45"),
    (r"\boxed{ \, 45 \, }", "45"),
    (r"\boxed{45\ \text{dollars}}", "45"),
    (r"\boxed{45\,\text{m}^2}", "45"),
    (r"\boxed{\frac12\,\text{hour}}", "1/2"),
    # an answer that was cut off is none; with nothing of it there, the last number stands
    (r"So 3+4=7. Therefore, the answer is \(\boxed", None),
    (r"So 3+4=7. Therefore, the answer is \(\boxed{", None),
    (r"So 3+4=7. Therefore, the answer is \[ \boxed{\frac{", None),
    (r"So 3+4=7. Therefore, the answer is \(\sqrt", None),
    ("So 3+4=7. Therefore, the answer is \\", None),
    ("So 3+4=7. Therefore, the answer is", "7"),
    ("So 3+4=7. Therefore, the answer is:\n\\[\n\\", "7"),
    ("So 3+4=7.\n\nAnswer:\n---\n**7**", "7"),
    (r"So 3+4=7. Therefore, the answer is \(\boxed{7", "7"),
    (r"The answer is \(\pi\).", "pi"),
    # the last number
    ("He pays $5 and gets 10 back, so 15", "15"),
    ("1,000,000 dollars", "1000000"),
    ("one of 3,5", "5"),
    ("that makes 20%", "20"),
    ("10 - 3", "3"),
    ("it falls to -3", "-3"),
    ("a debt of -$5", "-5"),
    ("She has 1/2 left", "1/2"),
    ("it costs .75", "3/4"),
    # nothing
    ("no numbers here", None),
    ("", None),
    (r"\boxed{}", None),
    ("#### Summary", None),
]

SAME = [
    ["1/2", "0.5", ".50", r"\frac{1}{2}", r"\frac12", r"\dfrac{1}{2}", r"\tfrac 12", "2/4", r"\frac{1}2", "$0.5$"],
    ["-1/2", r"-\frac{1}{2}", r"\frac{-1}{2}", "-0.50", "\u22120.5"],
    ["1000", "1,000", "1000.00", r"1{,}000", r"1,\!000", r"\$1,000", "1e3", r"1.0\times 10^{3}"],
    ["90", r"90^\circ", r"90^{\circ}", "90°", "90 degrees", "90."],
    ["15", r"15\mbox{ cm}^2", r"15\,\text{cm}", "15 square feet", "15cm", "x = 15", "15 miles per hour", "€15"],
    ["9/5", r"1\frac{4}{5}", "1 4/5", "1.8"],
    ["50", r"50\%", "50%", "50 percent"],
    ["evelyn", r"\text{Evelyn}", "Evelyn", r"\textbf{Evelyn}."],
    ["1,-2", "-2,1", "1 and -2", r"x=1 \text{ or } x=-2"],
    ["(3,pi/2)", r"\left( 3, \frac{\pi}{2} \right)", "(3, π/2)", r"(3.0,\,\pi/2)"],
    ["C", "(C)", r"\text{(C)}"],
    ["2sqrt(5)", r"2\sqrt{5}", r"2 \sqrt 5", "2√5", r"2\cdot\sqrt{5}"],
    ["52_8", "52_{8}"],
    ["2x+3", "y = 2x + 3", "2x+3."],
    ["(x+1)/2", r"\frac{x+1}{2}"],
    ["[-2,7]", r"x \in [-2,7]"],
    [r"\{1, 2\}", r"\left\{1,2\right\}"],
    [r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"],
    ["no solution", r"\text{No solution}"],
    ["1/(2x)", r"\frac{1}{2x}", r"\frac{1}{(2x)}"],
    ["3/(2sqrt(3))", r"\frac{3}{2\sqrt3}"],
    ["2^{10}", "2^10"],
    [r"e^\pi", r"e^{\pi}"],
    ["x = 2, y = 3", r"y=3 \text{ and } x=2"],
    ["x<=5", r"x \le 5", r"x\leq5", "x ≤ 5"],
]


@pytest.mark.parametrize(("response", "answer"), FOUND)
def test_the_final_answer_is_found(response, answer):
    assert math.outcome(response) == answer


@pytest.mark.parametrize("group", range(len(SAME)))
def test_ways_of_writing_an_answer_are_one_and_no_other(group):
    forms = {math.gold(text) for text in SAME[group]}
    assert len(forms) == 1
    others = {math.gold(text) for at, texts in enumerate(SAME) if at != group for text in texts}
    assert forms.isdisjoint(others)
    for text in SAME[group]:
        assert math.correct(math.outcome(rf"So it is \boxed{{{text}}}."), SAME[group][0])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("2", "-2"),
        ("0.333", "1/3"),
        ("2x", "2"),
        ("2xy", "2"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("x", "X"),
        ("5", "5, 6"),
        (r"5 \text{ or } 6", "5"),
        ("3:2", "3"),
        ("1/0", "0"),
        ("2+3", "5"),
        ("52_8", "52"),
        ("sin x", "cos x"),
        ("1,000", "1,0"),
        ("x = 2, y = 3", "x = 3, y = 2"),
        (r"\frac{1}{2x}", r"\frac{1}{2}x"),
        (r"\frac{3}{2\sqrt3}", r"\frac32\sqrt3"),
        (r"\frac{x}{yz}", r"\frac{x}{y}z"),
        ("e^{2x}", "e^{2}x"),
        ("x^{2y}", "x^2y"),
        ("2^{n^{2}+1}", "2^{n^{2}}+1"),
        (r"\log_2 3", r"\log_{23}"),
        ("5!", "5"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "2"),
        ("(45, 1)", "45"),
        (r"\{45\}", "45"),
    ],
)
def test_different_answers_stay_different(a, b):
    assert not math.same(math.gold(a), math.gold(b))


def test_gold_answers_in_their_datasets_form():
    assert math.gold("48/2 = <<48/2=24>>24 clips in May.\n#### 1,072") == "1072"
    assert math.gold(r"We have $x = 3$, so the sum is $\boxed{\frac{14}{3}}$.") == "14/3"
    assert math.gold(72) == "72"
    assert not math.correct(None, "72")
    with pytest.raises(ValueError, match="math reference"):
        math.gold(" ")


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{" * 5000,
        "[answer]" * 20000,
        r"\frac{" * 80,
        "(1," * 160 + "2" + ")" * 160,
        "1," * 20000,
        "the answer is \\[\\" * 5000,
        "the answer is " + "\\" * 20000 + "x",
        "the answer is " + " " * 20000 + "x",
    ],
)
def test_texts_gone_astray_are_read_in_no_time(response):
    import time

    begun = time.perf_counter()
    math.outcome(response)
    math.outcome(rf"\boxed{{{response}}}")
    assert time.perf_counter() - begun < 2.0


def test_numbers_too_large_to_compute_with_are_compared_as_text():
    assert math.outcome(rf"\boxed{{{'9' * 450}}}") == "9" * 450
    assert math.outcome(r"\boxed{1e999999}") == "1e999999"
