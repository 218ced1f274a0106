"""The model through lm_eval itself, on the embedded pair."""

import json

import pytest

pytest.importorskip("lm_eval.api")

import torch
from embedded_runs import JUDGE, PAIR, TASKS, evaluate, responses
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from hf_selfjudge import playground
from hf_selfjudge.lm_eval.model import SelfJudgeLM, StopTexts, make_point
from hf_selfjudge.lm_eval.response import FIGURES
from hf_selfjudge.playground import ASSETS
from hf_selfjudge.rules import never_relax

pytestmark = pytest.mark.filterwarnings("default")  # lm_eval's own affair
ARGUMENTS = {"until": [], "max_gen_toks": 96, "do_sample": False}


@pytest.fixture(scope="module")
def model():
    return SelfJudgeLM("playground", "playground", dtype="float32", device="cpu", batch_size=4)


def request(prompt, **arguments):
    return Instance("generate_until", {}, (prompt, {**ARGUMENTS, **arguments}), 0)


def chat(model, text):
    return model.apply_chat_template([{"role": "user", "content": text}])


@pytest.mark.parametrize("task", TASKS)
def test_exact_decoding_is_the_hf_model(runs, task):
    hf, exact = runs("hf"), runs("exact")
    assert responses(exact, task) == responses(hf, task)
    assert exact["results"][task]["score,none"] == hf["results"][task]["score,none"]
    assert exact["results"][task]["judged_in_share,none"] == 0
    assert exact["results"][task]["accepted_per_cycle,none"] > 1
    assert not any(f"{name},none" in hf["results"][task] for name in FIGURES)


def test_a_judge_differs_and_accepts_more(runs):
    exact, judge = runs("exact"), runs("judge")
    assert responses(judge) != responses(exact)
    for name in ("accepted_per_cycle,none", "tokens_per_target_forward,none", "judged_in_share,none"):
        assert judge["results"][TASKS[0]][name] > exact["results"][TASKS[0]][name]


def test_figures_and_totals_are_what_generate_returned(runs):
    judge = runs("judge")
    target, draft, tokenizer, verifier = playground.load()
    rule = never_relax(verifier.with_threshold("f1"), "digits", tokenizer)
    sums = dict.fromkeys(("cycles", "new_tokens", "drafted", "judged_in", "accepted"), 0)
    for task in TASKS:
        before = dict(sums)
        documents = sorted(judge["samples"][task], key=lambda sample: sample["doc_id"])
        for document, response in zip(documents, responses(judge, task), strict=True):
            inputs = tokenizer.apply_chat_template(
                [{"role": "user", "content": document["doc"]["prompt"]}],
                add_generation_prompt=True, return_tensors="pt", return_dict=True,
            )  # fmt: skip
            out = target.generate(**inputs, assistant_model=draft, judge=rule, num_assistant_tokens=5,
                                  max_new_tokens=160, do_sample=False, return_dict_in_generate=True)  # fmt: skip
            text = tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            assert response == text
            for name in sums:
                sums[name] += getattr(out.judge_stats, name)
        found = judge["results"][task]
        made = {name: sums[name] - before[name] for name in sums}
        assert found["accepted_per_cycle,none"] == made["accepted"] / made["cycles"]
        assert found["tokens_per_target_forward,none"] == made["new_tokens"] / made["cycles"]
        assert found["acceptance_rate,none"] == made["accepted"] / made["drafted"]
        assert found["judged_in_share,none"] == made["judged_in"] / made["new_tokens"]
    told = judge["config"]["selfjudge"]
    assert {name: told["totals"][name] for name in sums} == sums
    assert told["totals"]["responses"] == 12
    assert told["totals"]["tokens_per_second"] > 0
    assert (told["rule"], told["gamma"], told["mode"]) == ("judge:playground@f1+digits", 5, "two-stage")
    json.dumps(told)


def test_the_cache_tells_thresholds_and_gammas_apart(tmp_path):
    def run(arguments):
        return evaluate(f"{PAIR},judge=playground,{arguments}", tasks=TASKS[:1], metadata={"items": 4},
                        use_cache=str(tmp_path / "cache"), batch_size=4)  # fmt: skip

    strict, lax, other = run("threshold=0.9"), run("threshold=0.05"), run("threshold=0.05,gamma=3")
    assert responses(strict) != responses(lax)
    for found in (strict, lax, other):
        assert found["config"]["selfjudge"]["totals"]["responses"] == 4
    again = run("threshold=0.9")
    assert again["config"]["selfjudge"]["totals"] == {"responses": 0}
    assert responses(again) == responses(strict)
    assert again["results"] == strict["results"]  # counts and times come from the cache too


def test_stop_texts_end_a_response_inside_a_block(model):
    questions = ["Mira asks: A farm has 12 eggs. Later it collects 30 more. How many eggs are there now?",
                 "A shop has 50 pens. It sells 20 of them. How many pens are left?"]  # fmt: skip
    prompts = [chat(model, question) for question in questions]
    for stop in (" is", "s", "."):
        whole = model.generate_until([request(prompt) for prompt in prompts], disable_tqdm=True)
        cut = model.generate_until([request(prompt, until=[stop]) for prompt in prompts], disable_tqdm=True)
        for long, short in zip(whole, cut, strict=True):
            assert short == long.split(stop)[0]
            tokens = model.tokenizer(long, add_special_tokens=False)["input_ids"]
            count = int(short.stats["new_tokens"])
            if stop in long:
                assert stop in model.tokenizer.decode(tokens[:count])
                assert stop not in model.tokenizer.decode(tokens[: count - 1])


def test_stop_texts_do_not_look_into_the_prompt(model):
    tokens = model.tokenizer("the eggs are here", add_special_tokens=False, return_tensors="pt")["input_ids"]
    length = tokens.shape[1]
    assert StopTexts(["eggs"], model.tokenizer, 0)(tokens, None).tolist() == [True]
    assert StopTexts(["eggs"], model.tokenizer, length - 1)(tokens, None).tolist() == [False]
    assert StopTexts([], model.tokenizer, 0)(tokens, None).tolist() == [False]


def test_requests_keep_their_order_and_their_own_arguments(model):
    prompts = [
        chat(model, f"A farm has {n} eggs. Later it collects 30 more. How many are there now?") for n in (5, 12345)
    ]
    requests = [request(prompts[0]), request(prompts[1], max_gen_toks=3), request(prompts[0], max_gen_toks=2)]
    found = model.generate_until(requests, disable_tqdm=True)
    assert [response.stats["new_tokens"] for response in found][1:] == [3, 2]
    assert found[0].startswith(found[2])
    assert found[0] == model.generate_until(requests[:1], disable_tqdm=True)[0]
    with pytest.raises(ValueError, match="512 tokens at most"):
        model.generate_until([request(prompts[0], max_gen_toks=512)])


def test_log_likelihoods_are_the_targets(model):
    asked = [Instance("loglikelihood", {}, ("A farm has 12", " eggs."), 0)]
    plain = HFLM(str(ASSETS / "target"), dtype="float32", device="cpu")
    assert model.loglikelihood(asked, disable_tqdm=True) == plain.loglikelihood(asked, disable_tqdm=True)


def test_sampling_goes_through(model):
    torch.manual_seed(0)
    asked = request(chat(model, "Say something."), do_sample=True, temperature=1.5, max_gen_toks=20)
    first, second = (model.generate_until([asked], disable_tqdm=True)[0] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"assistant": None}, "needs a draft"),
        ({"judge": "playground", "rule": "topk:2"}, "both given"),
        ({"threshold": "f1"}, "without judge"),
        ({"rule": "topk:2..4"}, "several points"),
        ({"rule": "judge:playground@sweep"}, "several points"),
        ({"rule": "nothing:2"}, "Unknown rule"),
        ({"never_relax": "verbs"}, "verbs"),
        ({"mode": "fast"}, "two-stage"),
        ({"gamma": 0}, "at least 1"),
        ({"gamma": "abc"}, "gamma is 'abc'"),
        ({"schedule": "sometimes"}, "adaptive"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelfJudgeLM("no-such-model", **{"assistant": "no-such-draft", **arguments})


def test_points():
    assert make_point(None, None, None, None, 5).spec == "exact"
    assert make_point("J", 0.4, None, "digits+special", 5).spec == "judge:J@0.4+digits+special"
    assert make_point(None, None, "judge:J@f1&floor:0.01+digits", "digits", 5).spec == "judge:J@f1&floor:0.01+digits"
    assert JUDGE.startswith(PAIR)
