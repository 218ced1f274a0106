"""The embedded pair for vLLM, and engines that tests share. vLLM is imported only by tests with the marker `vllm`."""

import os

import pytest
import torch

from hf_selfjudge import SelfJudgeVerifier, playground
from hf_selfjudge.config import JudgeConfig
from hf_selfjudge.playground import ASSETS
from hf_selfjudge.playground.tasks import load_task
from hf_selfjudge.playground.wide_heads import widened

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # in this process: faster to start, easier to look into
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

GAMMA = 5
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "distributed_executor_backend": "uni",
    "disable_log_stats": False,
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("vllm") is not None:
            item.add_marker(pytest.mark.filterwarnings("default"))  # vLLM and what it imports warn at will


@pytest.fixture(scope="session")
def embedded():
    """The target, draft, tokenizer and judge in transformers."""
    return playground.load()


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory) -> str:
    """The embedded draft as vLLM's CPU attention can read it."""
    return str(widened(ASSETS / "draft", tmp_path_factory.mktemp("pair") / "draft"))


@pytest.fixture(scope="session")
def prompts(embedded) -> list[list[int]]:
    """Chats of unequal lengths from all tasks of the playground, as token ids."""
    tokenizer = embedded[2]
    names = ("word_problems", "multiple_choice", "news", "open_ended")
    texts = [text for name in names for text in load_task(name, 3, "test", 7).prompts]
    chats = [[{"role": "user", "content": text}] for text in texts]
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True) for chat in chats]
    found = [list(one["input_ids"]) for one in ids]
    assert len({len(one) for one in found}) > 4
    return found


# Engines live for the whole session: one that is collected ends torch.distributed for all others of the process.


@pytest.fixture(scope="session")
def stock(draft_folder):
    """Unmodified vLLM with the draft."""
    return without_judge(draft_folder)


@pytest.fixture(scope="session")
def idle(draft_folder):
    """vLLM with our worker, but without the entry that asks for a judge."""
    return without_judge(draft_folder, worker_cls="hf_selfjudge.vllm.SelfJudgeWorker")


def without_judge(draft_folder, **options):
    from vllm import LLM

    speculation = {"method": "draft_model", "model": draft_folder, "num_speculative_tokens": GAMMA}
    return LLM(model=str(ASSETS / "target"), speculative_config=speculation, **options, **ENGINE)


@pytest.fixture(scope="session")
def judged(draft_folder):
    """vLLM with the embedded judge; prompts come in chunks and prefixes are cached."""
    from hf_selfjudge.vllm import judged_llm

    return judged_llm(
        str(ASSETS / "target"),
        draft_folder,
        str(ASSETS / "judge"),
        GAMMA,
        threshold="f1",
        timing=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=96,
        **ENGINE,
    )


@pytest.fixture(scope="session")
def hidden_judge(embedded):
    """A judge on the hidden state alone, with made-up weights under which about half of the tokens pass."""
    width = embedded[0].config.hidden_size
    weight = torch.randn(width, generator=torch.Generator().manual_seed(3)) / width**0.5
    return SelfJudgeVerifier(JudgeConfig(hidden_size=width)).set_weights(weight, 0.0)


@pytest.fixture(scope="session")
def guarded(draft_folder, hidden_judge, tmp_path_factory):
    """vLLM with the judge above, a rule that must accept as well, and digits that are never relaxed."""
    from hf_selfjudge.vllm import judged_llm

    folder = tmp_path_factory.mktemp("judge")
    hidden_judge.save_pretrained(folder)
    target = str(ASSETS / "target")
    guards = {"require": "floor:0.001", "never_relax": ("digits",)}
    return judged_llm(target, draft_folder, str(folder), GAMMA, **guards, **ENGINE)


@pytest.fixture(scope="session")
def ngram():
    """vLLM that drafts from the prompt, with a training-free rule.

    No engine can start behind it: vLLM's search for kernels trips over a module that n-gram drafting imports.
    """
    from hf_selfjudge.vllm import judged_llm

    speculation = {"method": "ngram", "num_speculative_tokens": GAMMA, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return judged_llm(str(ASSETS / "target"), None, "topk:4", speculative_config=speculation, **ENGINE)


@pytest.fixture(scope="session")
def hf_loop(embedded):
    """What the Hugging Face loop generates after a prompt and the target's first token, with its statistics.

    vLLM takes the first token from the prompt's own forward and drafts behind it, so blocks start one token later.
    """
    target, draft, _, judge = embedded
    known = {}

    def run(prompt, threshold, max_tokens=96, rule=None):
        key = (tuple(prompt), threshold, max_tokens, id(rule))
        if key not in known:
            first = plain(target, prompt, 1)
            start = torch.tensor([prompt + first])
            out = target.generate(
                start,
                attention_mask=torch.ones_like(start),
                assistant_model=draft,
                judge=judge.with_threshold(threshold) if rule is None else rule,
                num_assistant_tokens=GAMMA,
                max_new_tokens=max_tokens - 1,
                do_sample=False,
                return_dict_in_generate=True,
            )
            known[key] = out.sequences[0, len(prompt) :].tolist(), out.judge_stats
        return known[key]

    return run


def plain(model, prompt, max_tokens):
    """What a model alone generates greedily in transformers."""
    start = torch.tensor([prompt])
    out = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=max_tokens, do_sample=False)
    return out[0, len(prompt) :].tolist()


def generate(llm, prompts, max_tokens=96, thresholds=None, **params):
    """The outputs of an engine, greedy unless said otherwise; `thresholds` are the requests' own."""
    from vllm import SamplingParams

    thresholds = [None] * len(prompts) if thresholds is None else thresholds
    settings = [
        SamplingParams(
            **{"temperature": 0.0, "max_tokens": max_tokens, **params},
            extra_args=None if threshold is None else {"selfjudge": threshold},
        )
        for threshold in thresholds
    ]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], settings, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def token_ids(outputs):
    return [list(output.token_ids) for output in outputs]
