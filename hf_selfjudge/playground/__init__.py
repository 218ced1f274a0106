"""A small real pair of models and the world of tasks it was trained on, for the demo, the docs and the tests.

`load()` gives the embedded pair. `world` makes the tasks, `train` is the recipe of the pair, `evaluate` scores it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
"""Where the embedded pair and its judge lie: one folder each, `target`, `draft` and `judge`."""


def load(assets: str | Path = ASSETS) -> tuple[Any, Any, Any, Any]:
    """Load the embedded `(target, draft, tokenizer, judge)`; nothing is downloaded.

    Raises:
        FileNotFoundError: if one of the three folders is not there.
    """
    assets = Path(assets)
    missing = [name for name in ("target", "draft", "judge") if not (assets / name / "config.json").is_file()]
    if missing:
        raise FileNotFoundError(
            f"the playground's {', '.join(missing)} not found under {assets}; install the package with its assets, or "
            "make the pair with `python -m hf_selfjudge.playground.train --out DIR` and pass its folder as `assets`"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_selfjudge import SelfJudgeVerifier

    # stored in bf16, which most CPUs only emulate
    target = AutoModelForCausalLM.from_pretrained(assets / "target", dtype="float32").eval()
    draft = AutoModelForCausalLM.from_pretrained(assets / "draft", dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(assets / "target")
    return target, draft, tokenizer, SelfJudgeVerifier.from_pretrained(assets / "judge")
