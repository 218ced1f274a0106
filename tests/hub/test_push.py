"""Push and pull end to end: the real client in its own processes, a stand-in Hub in this one."""

import json
import time
from pathlib import Path

import pytest
import torch
from hub_client import Client, Failed
from hub_stand_in import TOKEN
from tiny import HIDDEN_SIZE, build_draft, build_judge, build_model, prompts

from hf_selfjudge.config import ModelReference
from hf_selfjudge.hub.handwritten import YOURS
from hf_selfjudge.hub.push import write_method

PUSH = """
from hf_selfjudge.hub.push import PushOptions, push
done = push(folder, repo, PushOptions(**options))
result = [done.url, done.is_new, done.files]
"""
WEIGHTS = """
from hf_selfjudge import SelfJudgeVerifier
judge = SelfJudgeVerifier.from_pretrained(repo, **options)
features = torch_features = __import__("torch").linspace(-2, 2, judge.config.input_size).reshape(1, -1)
result = [judge.probability(features).tolist(), judge.threshold, judge.config.thresholds]
"""
GENERATE = """
import sys
import torch
from transformers import AutoModelForCausalLM
imported = "hf_selfjudge" in sys.modules
target, draft = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64) for path in models)
prompt = torch.tensor(prompt)
out = target.generate(
    prompt, attention_mask=torch.ones_like(prompt), custom_generate=method, trust_remote_code=True,
    assistant_model=draft, judge=judge, max_new_tokens=24, do_sample=False, num_assistant_tokens=5, **options,
)
again = target.generate(
    prompt, attention_mask=torch.ones_like(prompt), custom_generate=method, trust_remote_code=True,
    assistant_model=draft, judge=judge, max_new_tokens=24, do_sample=False, num_assistant_tokens=5, **options,
)
result = [imported, out.tolist(), again.tolist()]
"""


def make_judge(seed=0, **config):
    named = {"target": ModelReference("org/target"), "draft": ModelReference("org/draft")}
    settings = {"thresholds": {"f1": 0.4, "recall": 0.7}, "default_threshold": "f1", **named, **config}
    return build_judge(("hidden", "s_prefix", "log_q"), seed=seed, **settings)


def probabilities(judge):
    return judge.probability(torch.linspace(-2, 2, judge.config.input_size).reshape(1, -1)).tolist()


def load(client, repo, **options):
    return client(WEIGHTS, repo=repo, options=options)


def push(client, folder, repo, **options):
    return client(PUSH, folder=str(folder), repo=repo, options=options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("judge")
    make_judge().save_pretrained(path)
    (path / "build").mkdir()
    (path / "build" / "secret.json").write_text("{}")
    (path / "model.pkl").write_bytes(b"not ours")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    target = build_model("llama")
    draft = build_draft(target, 0.1)
    paths = []
    for name, model in (("target", target), ("draft", draft)):
        paths.append(str(tmp_path_factory.mktemp("models") / name))
        model.save_pretrained(paths[-1])
        model.name_or_path = paths[-1]  # what the judge was "trained" for, by name
    return target, draft, paths


def test_a_pushed_judge_comes_back_the_same_in_a_fresh_process(hub, owner, folder, models, tmp_path):
    """Probabilities and generations; by custom_generate first, in a process that never imports the package by hand."""
    url, is_new, files = push(owner, folder, "org/judge")
    assert is_new
    assert url.startswith(f"{hub.url}/org/judge/commit/")
    own = {"README.md", "config.json", "model.safetensors"}
    assert set(files) == own | {"custom_generate/generate.py", "custom_generate/requirements.txt"}
    assert set(hub.repos["org/judge"].trees[hub.repos["org/judge"].refs["main"]]) == set(files) | {".gitattributes"}
    assert any(request.startswith("PUT /lfs/") for request in hub.requests)

    target, draft, paths = models
    judge, prompt = make_judge(), prompts(1, 6)[0]
    wanted = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    expected = target.generate(prompt, assistant_model=draft, judge=judge, num_assistant_tokens=5, **wanted).tolist()
    assert expected != target.generate(prompt, **wanted).tolist()  # the judge has something to say
    local = tmp_path / "method"
    write_method(local)
    fresh = Client(hub.url, tmp_path / "home")
    try:
        values = {"models": paths, "prompt": prompt.tolist(), "options": {}}
        assert fresh(GENERATE, method="org/judge", judge="org/judge", **values) == [False, expected, expected]
        assert fresh(GENERATE, method=str(local), judge=str(folder), **values)[1:] == [expected, expected]
        values["options"] = {"judge_threshold": 1.0, "token": TOKEN}
        exact = target.generate(prompt, **wanted).tolist()
        assert fresh(GENERATE, method="org/judge", judge="org/judge", **values)[1:] == [exact, exact]
        assert load(fresh, "org/judge") == [probabilities(judge), 0.4, judge.config.thresholds]
    finally:
        fresh.close()


def test_custom_generate_from_a_local_folder_alone(hub, models, folder, tmp_path):
    target, draft, paths = models
    prompt = prompts(1, 6)[0]
    write_method(tmp_path / "method")
    fresh = Client(hub.url, tmp_path / "home")
    try:
        values = {"models": paths, "prompt": prompt.tolist(), "options": {}}
        imported, out, again = fresh(GENERATE, method=str(tmp_path / "method"), judge=str(folder), **values)
        assert not imported
        assert out == again
        expected = target.generate(
            prompt, assistant_model=draft, judge=make_judge(), num_assistant_tokens=5, max_new_tokens=24,
            do_sample=False, attention_mask=torch.ones_like(prompt),
        )  # fmt: skip
        assert out == expected.tolist()
        with pytest.raises(Failed, match="needs judge="):
            fresh(GENERATE, method=str(tmp_path / "method"), judge=None, **values)
        fresh(GENERATE, method=str(tmp_path / "method"), judge="topk:2", **values)
        values["options"] = {"judge_threshold": 0.5}
        with pytest.raises(Failed, match="judge_threshold is for judges"):
            fresh(GENERATE, method=str(tmp_path / "method"), judge="exact", **values)
    finally:
        fresh.close()


def test_an_unchanged_push_makes_no_commit(hub, owner, folder):
    push(owner, folder, "org/same")
    log = list(hub.repos["org/same"].log)
    assert push(owner, folder, "org/same")[1] is False
    assert hub.repos["org/same"].log == log
    code = "from hf_selfjudge import SelfJudgeVerifier\nSelfJudgeVerifier.from_pretrained(folder).push_to_hub(repo)"
    owner(code, folder=str(folder), repo="org/same")
    assert hub.repos["org/same"].log == log


def test_tags_branches_and_commits(hub, owner, visitor, folder, tmp_path):
    push(owner, folder, "org/versions")
    first = hub.repos["org/versions"].refs["main"]
    owner("from huggingface_hub import HfApi\nHfApi().create_tag('org/versions', tag='v1')")
    make_judge(seed=1).save_pretrained(tmp_path)
    push(owner, tmp_path, "org/versions", revision="next")
    old, new = probabilities(make_judge()), probabilities(make_judge(seed=1))
    assert old != new
    assert load(visitor, "org/versions")[0] == old
    assert load(visitor, "org/versions", revision="next")[0] == new
    push(owner, tmp_path, "org/versions")
    assert load(visitor, "org/versions")[0] == new
    assert load(visitor, "org/versions", revision="v1")[0] == old
    assert load(visitor, "org/versions", revision=first)[0] == old


def test_a_dry_run_asks_nothing_of_the_hub(hub, owner, folder):
    before = len(hub.requests)
    url, is_new, files = push(owner, folder, "org/dry", dry_run=True)
    assert (url, is_new) == (None, False)
    assert "model.safetensors" in files
    assert [request for request in hub.requests[before:] if "agent" not in request] == []
    assert "org/dry" not in hub.repos


def test_nothing_of_the_judge_before_stays(hub, owner, folder, tmp_path):
    push(owner, folder, "org/again")
    repo = hub.repos["org/again"]
    for name in ("report/report.json", "report/roc.png", "measured.json", ".eval_results/judge.yaml", "notes.txt"):
        repo.put(name, b"of another judge")
    make_judge(seed=3).save_pretrained(tmp_path)
    (tmp_path / "measured.json").write_text('{"weights": "of another judge", "comparisons": []}')
    push(owner, tmp_path, "org/again")
    left = set(repo.trees[repo.refs["main"]])
    assert "notes.txt" in left
    assert not {"report/report.json", "report/roc.png", "measured.json", ".eval_results/judge.yaml"} & left


def test_a_mistyped_folder_is_no_hub_id(hub, owner):
    before = len(hub.requests)
    with pytest.raises(Failed, match="nope is not a folder"):
        push(owner, "nope", "org/dry", dry_run=True)
    assert [request for request in hub.requests[before:] if "agent" not in request] == []


def test_a_hand_edited_card_survives(hub, owner, folder, tmp_path):
    push(owner, folder, "org/card")
    repo = hub.repos["org/card"]
    card = repo.text("README.md").replace(YOURS, f"{YOURS}\n\nMeasured by Ada.").replace("tags:", "license: mit\ntags:")
    repo.put("README.md", card.encode())
    make_judge(thresholds={"f1": 0.25, "recall": 0.7}).save_pretrained(tmp_path)
    push(owner, tmp_path, "org/card")
    merged = repo.text("README.md")
    for part in ("Measured by Ada.", "license: mit", "| `f1` (default) | 0.2500 | 0.7500 |", "- org/target"):
        assert part in merged
    code = "from hf_selfjudge import SelfJudgeVerifier\nSelfJudgeVerifier.from_pretrained(folder).push_to_hub(repo)"
    owner(code, folder=str(folder), repo="org/card")
    assert "Measured by Ada." in repo.text("README.md")
    assert "| `f1` (default) | 0.4000 | 0.6000 |" in repo.text("README.md")
    repo.put("README.md", b"All mine.")
    push(owner, tmp_path, "org/card")
    assert repo.text("README.md") == "All mine."
    (tmp_path / "README.md").write_text("Mine here.")
    with pytest.raises(Failed, match="edited by hand both"):
        push(owner, tmp_path, "org/card")
    push(owner, tmp_path, "org/card", overwrite_card=True)
    assert repo.text("README.md") == "Mine here."
    (tmp_path / "README.md").write_text("Mine here, again.")  # nobody touched the Hub's card since
    push(owner, tmp_path, "org/card")
    assert repo.text("README.md") == "Mine here, again."
    repo.put("README.md", b"Theirs.")
    (tmp_path / "README.md").write_text("Mine here, at last.")
    with pytest.raises(Failed, match="edited by hand both"):
        push(owner, tmp_path, "org/card")


def test_an_interrupted_upload_leaves_the_old_version(hub, owner, visitor, folder, tmp_path):
    push(owner, folder, "org/broken")
    log = list(hub.repos["org/broken"].log)
    make_judge(seed=2).save_pretrained(tmp_path / "new")
    hub.break_uploads = True
    try:
        with pytest.raises(Failed) as failed:
            push(owner, tmp_path / "new", "org/broken")
        assert "OSError" in failed.value.kinds
        assert "org/broken is as it was before" in str(failed.value)
    finally:
        hub.break_uploads = False
    killed = Client(hub.url, tmp_path / "killed", TOKEN)
    hub.hold.clear()
    try:
        killed.send(PUSH, folder=str(tmp_path / "new"), repo="org/broken", options={})
        assert hub.holding.wait(60)
    finally:
        killed.close()
        hub.hold.set()
    time.sleep(0.1)
    assert hub.repos["org/broken"].log == log
    assert load(visitor, "org/broken")[0] == probabilities(make_judge())
    push(owner, tmp_path / "new", "org/broken")  # the same push again succeeds
    assert load(visitor, "org/broken")[0] == probabilities(make_judge(seed=2))


def test_a_push_between_the_two_downloads_mixes_nothing(hub, owner, visitor, folder, tmp_path):
    make_judge(seed=3).save_pretrained(tmp_path)
    push(owner, folder, "org/race")
    after_config = f"""
from hf_selfjudge.hub import download
from hf_selfjudge import judge as module
original = download.Repository.file
def file(self, name, size):
    found = original(self, name, size)
    if name == "config.json":
        input_ = __import__("urllib.request").request.urlopen({hub.url!r} + "/test/race")
    return found
download.Repository.file = file
"""
    hub.on_race = lambda: push(owner, tmp_path, "org/race")
    visitor(after_config)
    try:
        assert load(visitor, "org/race")[0] == probabilities(make_judge())
    finally:
        visitor("download.Repository.file = original")
    assert load(visitor, "org/race")[0] == probabilities(make_judge(seed=3))


@pytest.mark.parametrize(
    ("repo", "options", "kind", "message"),
    [
        ("org/nowhere", {}, "FileNotFoundError", "does not exist, or it is private and no token was sent"),
        ("org/private", {}, "FileNotFoundError", "does not exist, or it is private and no token was sent"),
        ("org/nowhere", {"token": TOKEN}, "FileNotFoundError", "your token has no access"),
        ("org/private", {"token": "hf_wrong"}, "OSError", "The token is not valid"),
        ("org/gated", {}, "PermissionError", "org/gated is gated"),
        ("org/private", {"token": TOKEN, "revision": "v9"}, "FileNotFoundError", "no revision 'v9'"),
        ("org/empty", {}, "FileNotFoundError", "is not a judge: it has no config.json"),
        ("org/huge", {}, "ValueError", "its config.json has 1099511627776 bytes"),
        ("org/fat", {}, "ValueError", "its model.safetensors has 1099511627776 bytes"),
        ("org/bad", {}, "ValueError", "not valid JSON"),
        ("../../etc/passwd", {}, "ValueError", "neither a folder here nor a name on the Hub"),
        ("no such folder", {}, "ValueError", "neither a folder here nor a name on the Hub"),
        ("org/open", {"local_files_only": True}, "FileNotFoundError", "local_files_only=True forbids"),
    ],
)  # fmt: skip
def test_the_real_reason(hub, owner, visitor, folder, repo, options, kind, message):
    if "org/private" not in hub.repos:
        push(owner, folder, "org/private", private=True)
        for name in ("org/gated", "org/huge", "org/fat", "org/bad", "org/open", "org/empty"):
            push(owner, folder, name)
        hub.repos["org/gated"].gated = True
        hub.repos["org/bad"].put("config.json", b"{")
        hub.repos["org/empty"].commit("main", {})
    hub.claimed_sizes = {"org/huge": {"config.json": 1 << 40}, "org/fat": {"model.safetensors": 1 << 40}}
    with pytest.raises(Failed) as failed:
        load(visitor, repo, **options)
    assert message in str(failed.value)
    assert kind in failed.value.kinds
    assert "\n" not in str(failed.value)
    assert "direct cause" not in failed.value.trace
    assert load(owner, "org/private")[0] == probabilities(make_judge())


def test_without_network_the_cache_serves(hub, owner, folder, tmp_path):
    push(owner, folder, "org/cached")
    found = load(owner, "org/cached")
    try:
        owner("from huggingface_hub import constants\nconstants.HF_HUB_OFFLINE = True")
        assert load(owner, "org/cached") == found
        with pytest.raises(Failed, match="not in the cache, and HF_HUB_OFFLINE is set"):
            load(owner, "org/uncached")
        with pytest.raises(Failed, match="HF_HUB_OFFLINE is set, so nothing can be pushed"):
            push(owner, folder, "org/cached")
    finally:
        home = owner("constants.HF_HUB_OFFLINE = False\nresult = constants.HF_HOME")
    cut_off = Client("http://127.0.0.1:9", Path(home))
    try:
        cut_off("import time\ntime.sleep = lambda seconds: None")  # the client tries six times
        assert load(cut_off, "org/cached") == found
        with pytest.raises(Failed, match=r"http://127.0.0.1:9 cannot be reached \(Connect") as failed:
            load(cut_off, "org/uncached")
        assert "ConnectionError" in failed.value.kinds
        with pytest.raises(Failed, match=r"http://127.0.0.1:9 ") as failed:
            push(cut_off, folder, "org/cached")
        assert "OSError" in failed.value.kinds
    finally:
        cut_off.close()


def test_a_push_that_cannot_be(hub, owner, visitor, folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    with pytest.raises(Failed, match="link out of the judge's folder"):
        push(owner, tmp_path, "org/links")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"hidden_size": HIDDEN_SIZE}))
    with pytest.raises(Failed, match=r"config\.json has no"):
        push(owner, tmp_path / "broken", "org/links")
    with pytest.raises(Failed, match="log in with `hf auth login`"):
        push(visitor, folder, "org/links")
    assert "org/links" not in hub.repos


def test_the_method_alone(hub, owner):
    owner("from hf_selfjudge.hub.push import push_method\npush_method('org/selfjudge')")
    repo = hub.repos["org/selfjudge"]
    files = {".gitattributes", "README.md", "custom_generate/generate.py", "custom_generate/requirements.txt"}
    assert set(repo.trees[repo.refs["main"]]) == files
    assert "- custom_generate" in repo.text("README.md")
