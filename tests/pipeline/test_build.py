"""The build: resumable from any moment, refusing what does not fit, and one result however it was reached."""

import json
import shutil

import pytest
import torch
from building import manifest, options, results, save_pair, tiny_settings, with_models, write_prompts
from tiny import build_tokenizer
from transformers import AutoModelForCausalLM

from hf_selfjudge import SelfJudgeVerifier, cli
from hf_selfjudge.pipeline.build import STAGES, build
from hf_selfjudge.pipeline.models import ModelSettings, Pair
from hf_selfjudge.pipeline.records import Substitutions
from hf_selfjudge.pipeline.storage.shards import read_responses, read_table


def test_a_folder_is_not_named_like_a_hub_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "target").mkdir(parents=True)
    settings = ModelSettings(target="models/target", draft="models/draft")
    assert (settings.name("target"), settings.name("draft")) == ("./models/target", "models/draft")
    assert ModelSettings(target=str(tmp_path), draft="./models").name("target") == str(tmp_path)


def test_a_build_gives_a_judge_and_says_how(settings, plain):
    judge = SelfJudgeVerifier.from_pretrained(plain)
    rows = read_table(Substitutions, sorted((plain / "build" / "score").glob("*.safetensors")))
    keys = list(zip(rows.prompt_ids.tolist(), rows.positions.tolist(), rows.ranks.tolist(), strict=True))
    assert len(set(keys)) == len(keys) > 10
    assert set(rows.prompt_ids.tolist()) <= set(range(8))
    said = manifest(plain)
    assert said["settings"] == settings.to_dict()
    assert said["stages"]["prompts"]["rows"] == said["stages"]["respond"]["rows"] == 8
    assert said["stages"]["respond"]["info"]["tokens"] == 8 * 16
    assert said["stages"]["score"]["rows"] == said["stages"]["mine"]["rows"] == len(rows)
    assert said["models"]["target"]["fingerprint"] != said["models"]["draft"]["fingerprint"]
    assert judge.config.target.id == settings.models.target
    assert judge.config.labels["tau"] == said["stages"]["label"]["info"]["tau"]
    assert "torch" in said["packages"]


def test_a_finished_build_does_nothing_and_loads_nothing(settings, copied, no_models, monkeypatch):
    before = results(copied)
    monkeypatch.setattr(
        "hf_selfjudge.pipeline.storage.shards.write_bytes", lambda path, data: pytest.fail(f"wrote {path}")
    )
    found = build(settings, copied)
    assert found["rows"]["respond"] == 8
    assert results(copied) == before


def test_the_report_is_made_again_when_asked_for(settings, copied, no_models):
    page = copied / "report" / "report.html"
    text = page.read_text()
    page.write_text("old")
    build(settings, copied)
    assert page.read_text() == "old"
    build(settings, copied, ["report"])
    assert page.read_text() == text
    page.unlink()
    build(settings, copied)
    assert page.read_text() == text
    (copied / "build" / "fit" / "00000.note.json").unlink()
    with pytest.raises(ValueError, match="report needs the results of fit"):
        build(settings, copied, ["report"])


def test_other_settings_are_refused_with_the_difference(settings, copied):
    before = results(copied)
    with pytest.raises(ValueError, match=r"\(old -> new\): respond: batch_size: 4 -> 2; score: lengths: 0,5 -> 0,5,9;"):
        build(settings.updated({"batch_size": 2, "lengths": (0, 5, 9), "length": 9}), copied)
    with pytest.raises(ValueError, match=r"label: tau: not set -> 2\.0\. Give .* with --overwrite label\."):
        build(settings.updated({"tau": 2.0}), copied)
    with pytest.raises(ValueError, match="score: lengths: 0,5 -> 5"):
        build(settings.updated({"lengths": (5,)}), copied, ["fit"])
    with pytest.raises(ValueError, match=r"prompts: max_new_tokens: 16 -> 8; respond: max_new_tokens: 16 -> 8"):
        build(settings.updated({"max_new_tokens": 8}), copied, overwrite="mine")
    assert results(copied) == before


def test_another_model_is_refused_and_a_moved_one_is_not(settings, copied, tmp_path, no_models):
    other = save_pair(tmp_path / "other", noise=0.2)
    with pytest.raises(ValueError, match=r"mine: models\.draft\.fingerprint: files \w+ -> files \w+; score: models"):
        build(with_models(settings, draft=str(other / "draft")), copied)
    with pytest.raises(ValueError, match=r"respond: models\.target\.dtype: auto -> bfloat16"):
        build(with_models(settings, dtype="bfloat16"), copied)
    moved = shutil.copytree(settings.models.draft, tmp_path / "moved")
    build(with_models(settings, draft=str(moved)), copied)


def test_a_changed_file_of_prompts_is_refused(pair, tmp_path):
    prompts = write_prompts(tmp_path / "my.jsonl")
    settings = tiny_settings(pair, prompts)
    build(settings, tmp_path / "judge", ["prompts"])
    write_prompts(prompts, count=9)
    with pytest.raises(ValueError, match=r"prompts: content\..*my\.jsonl: \w+ -> \w+"):
        build(settings, tmp_path / "judge", ["prompts"])


def test_overwriting_drops_a_stage_and_what_was_made_from_it(settings, copied, tmp_path):
    changed = settings.updated({"tau": -3.0})
    mined = {path: path.stat().st_mtime_ns for path in (copied / "build" / "mine").iterdir()}
    build(changed, copied, ["label"], overwrite="label")
    assert not (copied / "config.json").exists()
    assert not list((copied / "build" / "fit").iterdir())
    assert {path: path.stat().st_mtime_ns for path in (copied / "build" / "mine").iterdir()} == mined
    build(changed, copied, STAGES[:-1])
    build(changed, tmp_path / "fresh", STAGES[:-1])
    assert results(copied) == results(tmp_path / "fresh")


def test_settings_of_stages_without_results_may_change(settings, tmp_path):
    out = tmp_path / "judge"
    build(settings, out, ["prompts", "respond", "mine"])
    changed = settings.updated({"lengths": (3,), "length": 3})
    build(changed, out, STAGES[:-1])
    build(changed, tmp_path / "fresh", STAGES[:-1])
    assert results(out) == results(tmp_path / "fresh")
    assert manifest(out)["settings"] == changed.to_dict()


def test_each_stage_alone_gives_the_same(settings, plain, tmp_path, capsys):
    out = tmp_path / "judge"
    for command, groups in (
        ("respond", ("models", "prompts", "respond")),
        ("mine", ("mine",)),
        ("score", ("score",)),
        ("label", ("label",)),
        ("fit", ("fit",)),
        ("calibrate", ()),
    ):
        cli.main([command, "--out", str(out), *options(settings, *groups)])
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["out"] == str(out)
    assert results(out) == results(plain)
    assert results(out)["README.md in step"]
    assert "Accepted at the default threshold" in (plain / "README.md").read_text()  # told by the report


def test_a_stage_needs_those_before_it(settings, tmp_path):
    out = tmp_path / "judge"
    with pytest.raises(FileNotFoundError, match="holds no build to go on with"):
        build(settings, out, ["score"])
    assert not out.exists()
    build(settings, out, ["prompts"])
    with pytest.raises(
        ValueError, match=r"mine needs the results of respond, and 2 of 2 shards .* `selfjudge respond`"
    ):
        build(settings, out, ["mine"])
    with pytest.raises(ValueError, match="no stage judge"):
        build(settings, out, ["judge"])


def test_a_corrupted_stage_before_is_told_to_a_stage_alone(settings, copied):
    path = copied / "build" / "mine" / "00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"fit needs the results of mine, and 1 of 2 .*\(shard 00001: corrupted\)"):
        build(settings, copied, ["fit"])


def test_empty_and_cut_responses_are_counted_and_empty_ones_not_mined(pair, prompts, plain, tmp_path):
    responses = [r for n in (0, 1) for r in read_responses(plain / "build" / "respond" / f"0000{n}.jsonl")]
    end = responses[2].answer[0]
    ended = save_pair(tmp_path / "pair", end=end)
    out = tmp_path / "judge"
    build(tiny_settings(ended, prompts), out, ["prompts", "respond", "mine", "score"])
    info = manifest(out)["stages"]["respond"]["info"]
    empty = [r.prompt_id for r in responses if r.answer[0] == end]
    assert info["empty"] == len(empty) > 0
    assert info["cut"] == sum(end not in r.answer for r in responses)
    assert manifest(out)["stages"]["respond"]["rows"] == 8
    rows = read_table(Substitutions, sorted((out / "build" / "score").glob("*.safetensors")))
    assert not set(rows.prompt_ids.tolist()) & set(empty)


def test_without_any_mismatch_there_is_nothing_to_judge(prompts, tmp_path):
    pair = save_pair(tmp_path / "pair", noise=0.0)
    with pytest.raises(ValueError, match="no mismatch in any response"):
        build(tiny_settings(pair, prompts), tmp_path / "judge")


def test_prompts_beyond_the_context_are_skipped_and_counted(pair, tmp_path):
    prompts = write_prompts(tmp_path / "my.jsonl")
    with prompts.open("a") as file:
        file.write('{"prompt": "%s"}\n' % ("the old stone " * 100))
    out = tmp_path / "judge"
    build(tiny_settings(pair, prompts), out, ["prompts"])
    entry = manifest(out)["stages"]["prompts"]
    assert entry["rows"] == 8
    assert entry["info"]["skipped"] == {"my.jsonl: longer than 240 tokens": 1}


def test_a_larger_padded_vocabulary_is_none_of_another(settings, prompts, tmp_path):
    pair = save_pair(tmp_path / "pair", noise=0.3)
    draft = AutoModelForCausalLM.from_pretrained(pair / "draft")
    draft.resize_token_embeddings(120, mean_resizing=False)
    draft.lm_head.weight.data[101:] *= 100  # padding that would win every position
    draft.save_pretrained(pair / "draft")
    out = tmp_path / "judge"
    build(tiny_settings(pair, prompts), out, ["prompts", "respond", "mine", "score"])
    rows = read_table(Substitutions, sorted((out / "build" / "score").glob("*.safetensors")))
    assert int(rows.draft_tokens.max()) < 101
    assert bool(rows.features["kl_pq"].isfinite().all())


def test_a_draft_that_reads_less_than_the_target_is_told(pair, prompts, settings, tmp_path):
    short = shutil.copytree(pair / "draft", tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}))
    build(with_models(settings, draft=None), tmp_path / "judge", ["prompts", "respond"])
    with pytest.raises(ValueError, match=r"have \d+ tokens, and the draft reads 20"):
        build(with_models(settings, draft=str(short)), tmp_path / "judge", ["mine"])


def test_more_autojudge_prompts_cost_only_the_shards_they_are_in(settings, tmp_path, caplog, monkeypatch):
    chosen = {0}
    monkeypatch.setattr("hf_selfjudge.pipeline.autojudge.autojudge_prompts", lambda prompts, settings: sorted(chosen))
    out = tmp_path / "judge"
    stages = ["prompts", "respond", "mine", "autojudge"]
    build(settings, out, stages)
    shards = [[r.prompt_id for r in read_responses(path)] for path in sorted((out / "build/respond").glob("*.jsonl"))]
    home = next(index for index, ids in enumerate(shards) if 0 in ids)
    chosen.add(shards[1 - home][0])
    build(settings, out, stages)
    assert f"autojudge: shard 0000{1 - home} is made again: made from other inputs" in caplog.text
    assert f"autojudge: shard 0000{home}" not in caplog.text


def test_another_vocabulary_is_refused_before_any_work(settings, tmp_path, no_models):
    pair = save_pair(tmp_path / "pair")
    build_tokenizer(shift=3).save_pretrained(pair / "draft")
    with pytest.raises(ValueError, match=r"different vocabularies \(101 and 101 tokens, \d+ entries differ\)"):
        build(with_models(settings, draft=str(pair / "draft")), tmp_path / "judge")
    assert not (tmp_path / "judge" / "build" / "prompts").exists()


def test_another_models_folder_is_left_alone(settings, pair):
    with pytest.raises(ValueError, match=r"holds another model .*'llama'"):
        build(settings, pair / "draft")


def test_an_edited_readme_is_left_alone(settings, copied):
    (copied / "README.md").write_text("mine")
    build(settings, copied, STAGES[:-1], overwrite="fit")
    assert (copied / "README.md").read_text() == "mine"


def test_a_lost_manifest_costs_nothing(settings, copied, plain, no_models):
    (copied / "build" / "manifest.json").unlink()
    build(settings, copied)
    assert results(copied) == results(plain)
    (copied / "build" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is not valid JSON"):
        build(settings, copied)


def test_out_of_memory_says_what_to_do(settings, tmp_path, monkeypatch):
    def load(self, role):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(Pair, "_load", load)
    with pytest.raises(MemoryError, match=r"in respond, shard 00000 \(CUDA out of memory\. Tried .*--batch-size"):
        build(settings, tmp_path / "judge")
