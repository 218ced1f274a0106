"""Judge decoding for `model.generate(..., custom_generate=<this repository>, trust_remote_code=True, judge=...)`."""

from os import PathLike, fspath
from typing import Any

from hf_selfjudge import SelfJudgeVerifier, install
from hf_selfjudge.rules import is_spec

OF_THE_DOWNLOAD = (
    "revision",
    "code_revision",
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "subfolder",
)


def generate(model: Any, judge: Any = None, judge_threshold: Any = None, token: Any = None, **arguments: Any) -> Any:
    """Decode with a judge; every other argument is `generate`'s own.

    Args:
        model: the target.
        judge: a judge's folder or Hub id, a loaded judge, or a rule such as "topk:2".
        judge_threshold: one of the judge's operating points, or a theta on P(acceptable).
        token: Hub token for a private judge.
        arguments: those of `generate`, `assistant_model` among them. Those that chose this file's version are dropped.
    """
    if judge is None:
        raise ValueError("Judge decoding needs judge=: a judge's folder or Hub id, or a rule such as 'topk:2'.")
    for name in OF_THE_DOWNLOAD:
        arguments.pop(name, None)
    if isinstance(judge, PathLike):
        judge = fspath(judge)
    if isinstance(judge, str) and not is_spec(judge):
        judge = SelfJudgeVerifier.from_pretrained(judge, threshold=judge_threshold, token=token)
    elif judge_threshold is not None:
        if not isinstance(judge, SelfJudgeVerifier):
            raise ValueError(f"judge_threshold is for judges, but judge= is {judge!r}. Leave it out.")
        judge = judge.with_threshold(judge_threshold)
    install()
    return model.generate(judge=judge, **arguments)
