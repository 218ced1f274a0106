"""The keyword judge= of generate: installed on import in any order, reversible, inert without the keyword."""

import subprocess
import sys
import textwrap

import pytest
import torch
from tiny import VOCAB_SIZE, Always, build_judge, prompts
from transformers import GenerationMixin, TextStreamer
from transformers.generation.streamers import BaseStreamer

import hf_selfjudge
from hf_selfjudge import JudgeDecoding, JudgeStats, never_relax
from hf_selfjudge.decoding import hook
from hf_selfjudge.rules import as_rule, parse_rule


@pytest.fixture
def _reinstall():
    yield
    hf_selfjudge.install()


@pytest.mark.usefixtures("_reinstall")
def test_install_and_uninstall_are_idempotent_and_reversible():
    hf_selfjudge.uninstall()
    original = GenerationMixin.generate
    assert not hook.is_installed()
    hf_selfjudge.uninstall()
    assert GenerationMixin.generate is original
    hf_selfjudge.install()
    wrapped = GenerationMixin.generate
    assert wrapped is not original
    hf_selfjudge.install()
    assert GenerationMixin.generate is wrapped
    assert hook.is_installed()
    assert wrapped.__doc__ == original.__doc__
    hf_selfjudge.uninstall()
    assert GenerationMixin.generate is original


@pytest.mark.usefixtures("_reinstall")
def test_calls_without_judge_reach_the_original_untouched(monkeypatch):
    seen = []

    def original(self, *args, **kwargs):
        seen.append((self, args, kwargs))
        return "theirs"

    hf_selfjudge.uninstall()
    monkeypatch.setattr(GenerationMixin, "generate", original)
    hf_selfjudge.install()
    model, ids, given = object(), object(), {"max_new_tokens": 3, "streamer": object(), "anything": [1]}
    assert GenerationMixin.generate(model, ids, **given) == "theirs"
    assert GenerationMixin.generate(model, ids, judge=None, **given) == "theirs"
    assert seen == [(model, (ids,), given)] * 2
    hf_selfjudge.uninstall()


@pytest.mark.usefixtures("_reinstall")
def test_custom_generate_works_without_the_hook(pair):
    hf_selfjudge.uninstall()
    prompt = prompts(1, seed=20)[0]
    decoding = JudgeDecoding(pair.draft, "topk:3", num_assistant_tokens=5)
    out = pair.target.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        custom_generate=decoding,
        max_new_tokens=14,
        do_sample=False,
        return_dict_in_generate=True,
    )
    with pytest.raises(ValueError, match="model_kwargs"):
        pair.target.generate(prompt, judge="topk:3", max_new_tokens=2)
    hf_selfjudge.install()
    hooked = pair.judged(prompt, "topk:3", 14, 5)
    assert torch.equal(out.sequences, hooked.sequences)
    assert out.judge_stats.sources == hooked.judge_stats.sources


def run_python(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "imports",
    [
        "import hf_selfjudge; assert 'transformers.generation.utils' not in sys.modules",
        "import transformers.generation.utils, hf_selfjudge",
    ],
    ids=["before transformers", "after transformers"],
)
def test_both_import_orders(imports):
    code = f"""
        import sys
        {imports}
        from hf_selfjudge.decoding.hook import is_installed
        assert is_installed()
        from transformers import GenerationMixin
        assert is_installed()
        assert hasattr(GenerationMixin.generate, "_selfjudge_original")
        hf_selfjudge.uninstall()
        assert not is_installed()
        assert not hasattr(GenerationMixin.generate, "_selfjudge_original")
        print("good")
    """
    assert run_python(code) == ["good"]


def test_uninstalled_before_transformers_is_loaded():
    code = """
        import hf_selfjudge, sys
        finders = len(sys.meta_path)
        hf_selfjudge.install()
        assert len(sys.meta_path) == finders
        hf_selfjudge.uninstall()
        assert len(sys.meta_path) == finders - 1
        print("good")
    """
    assert run_python(code) == ["good"]


class Recorder(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self):
        self.received, self.ended = [], 0

    def put(self, value):
        assert not self.ended
        self.received.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("judge", ["topk:3", Always(False)])
def test_a_streamer_receives_the_prompt_and_every_token(pair, judge):
    prompt, streamer = prompts(1, seed=21)[0], Recorder()
    out = pair.judged(prompt, judge, 17, 6, streamer=streamer)
    assert streamer.received[0] == prompt[0].tolist()
    assert [token for part in streamer.received for token in part] == out.sequences[0].tolist()
    assert streamer.ended == 1
    assert len(streamer.received) == out.judge_stats.cycles + 1


def test_a_streamer_takes_one_sequence(pair):
    with pytest.raises(ValueError, match="streamer"):
        pair.judged(torch.full((2, 4), 7), Always(False), 4, streamer=Recorder())


def test_transformers_own_streamer(pair, tokenizer, capsys):
    prompt = prompts(1, seed=21)[0]
    out = pair.judged(prompt, "topk:3", 12, 6, streamer=TextStreamer(tokenizer, skip_prompt=True))
    expected = tokenizer.decode(out.sequences[0, prompt.shape[1] :])
    assert capsys.readouterr().out.strip() == expected.strip()


def test_the_statistics_come_back_and_are_called_back(pair):
    prompt, seen = prompts(1, seed=22)[0], []
    out = pair.judged(prompt, "topk:3", 12, 4, judge_stats_callback=seen.append)
    assert seen == [out.judge_stats]
    assert isinstance(out.judge_stats, JudgeStats)
    tensor = pair.target.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        assistant_model=pair.draft,
        judge="topk:3",
        num_assistant_tokens=4,
        max_new_tokens=12,
        do_sample=False,
        judge_stats_callback=seen.append,
    )
    assert torch.equal(tensor, out.sequences)
    assert seen[1].sources == seen[0].sources


def test_combined_rules_as_text(pair, tokenizer, tmp_path):
    prompt = prompts(1, seed=22)[0]
    judge = build_judge(("log_p",), hidden_size=pair.target.config.hidden_size).set_weights(torch.ones(1), 3.0)
    judge.save_pretrained(tmp_path)
    rule = never_relax(as_rule(judge.with_threshold(0.4)) & parse_rule("topk:3"), "digits", tokenizer)
    expected = pair.judged(prompt, rule, 12, 4)
    found = pair.judged(prompt, f"judge:{tmp_path}@0.4&topk:3+digits", 12, 4, tokenizer=tokenizer)
    assert torch.equal(found.sequences, expected.sequences)
    assert found.judge_stats.sources == expected.judge_stats.sources
    assert found.judge_stats.judged_in > 0
    with pytest.raises(ValueError, match="the guard 'digits', which needs tokenizer="):
        pair.judged(prompt, "topk:3+digits", 12, 4)


def test_positional_arguments_and_inputs_by_name(pair):
    prompt = prompts(1, seed=23)[0]
    config = type(pair.target.generation_config)(max_new_tokens=9, do_sample=False, pad_token_id=0)
    shared = {"assistant_model": pair.draft, "judge": Always(False), "attention_mask": torch.ones_like(prompt)}
    one = pair.target.generate(prompt, config, **shared)
    two = pair.target.generate(input_ids=prompt, generation_config=config, **shared)
    assert torch.equal(one, two)
    assert torch.equal(one, pair.plain(prompt, 9))


def test_a_failing_call_leaves_the_models_usable(pair):
    prompt = prompts(1, seed=24)[0]

    def fail(stats):
        raise KeyError("callback")

    with pytest.raises(KeyError, match="callback"):
        pair.judged(prompt, "topk:3", 6, 3, judge_stats_callback=fail)

    class Broken(Recorder):
        def put(self, value):
            raise KeyError("streamer")

    with pytest.raises(KeyError, match="streamer"):
        pair.judged(prompt, "topk:3", 6, 3, streamer=Broken())
    assert not pair.target.get_output_embeddings()._forward_pre_hooks
    assert torch.equal(pair.judged(prompt, Always(False), 9, 3).sequences, pair.plain(prompt, 9))
    assert int(pair.plain(prompt, 9).max()) < VOCAB_SIZE
