"""Structured output with a judge that accepts everything: what the grammar forbids still never stands."""

import json
import re

import pytest
from vllm_engines import generate, token_ids

pytestmark = pytest.mark.vllm

# not a schema: the small target would fill the whitespace that it permits
JSON = r'\{"city": "[A-Z][a-z]{2,12}", "count": [1-9][0-9]?\}'


def constrained(llm, prompts, threshold, max_tokens=80, **grammar):
    from vllm.sampling_params import StructuredOutputsParams

    params = StructuredOutputsParams(**grammar)
    return generate(llm, prompts, max_tokens, [threshold] * len(prompts), structured_outputs=params)


@pytest.mark.parametrize("threshold", [0.0, "f1"])
@pytest.mark.parametrize(
    ("grammar", "fits"),
    [
        ({"choice": ["first", "second one", "third"]}, lambda text: text in ("first", "second one", "third")),
        ({"regex": "(ab|ba){3}[0-9]{2} [a-z]{4}"}, lambda text: re.fullmatch("(ab|ba){3}[0-9]{2} [a-z]{4}", text)),
        ({"regex": JSON}, lambda text: set(json.loads(text)) == {"city", "count"}),
    ],
)
def test_the_answer_fits_the_grammar(judged, prompts, threshold, grammar, fits):
    for output in constrained(judged, prompts[:6], threshold, **grammar):
        assert fits(output.text), output.text


def test_off_is_stock(judged, stock, prompts):
    grammar = {"regex": "[A-Z][a-z ,]{20,60}[.]"}
    expected = constrained(stock, prompts, None, **grammar)
    assert token_ids(constrained(judged, prompts, "off", **grammar)) == token_ids(expected)


def test_permitted_tokens_are_relaxed(judged, prompts):
    before = judged.selfjudge_statistics()["judge_accepted"]
    outputs = constrained(judged, prompts, 0.0, regex="[A-Z][a-z ,]{20,60}[.]")
    assert all(re.fullmatch("[A-Z][a-z ,]{20,60}[.]", output.text) for output in outputs)
    assert judged.selfjudge_statistics()["judge_accepted"] > before


def test_a_grammar_that_permits_everything_changes_nothing(judged, prompts):
    """The judge reads logits from before the mask, so an unconstrained neighbour and itself decide as ever."""
    free = token_ids(generate(judged, prompts[:4], 30))
    masked = token_ids(constrained(judged, prompts[:4], None, 30, regex="(.|\\n)*"))
    for one, other in zip(free, masked, strict=True):
        assert one[: len(other)] == other[: len(one)]
