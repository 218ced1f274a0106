"""Open tasks: a model is asked whether two responses mean the same (AutoJudge+). Only the question and its reading.

There is no such checker in the registry: it needs a model, and what it finds is a verdict on a pair, no outcome.
"""

from __future__ import annotations

import random
import re

SAME, DIFFERENT = "[SAME]", "[DIFFERENT]"
_QUESTION = """Below are a request and two responses to it. Decide whether a person who made the request would learn \
the same from both: the same facts, the same conclusions, the same advice. Other words, another order or another style \
make no difference. A fact that is changed, missing or added does, and so does a response that makes no sense.

Request:
{request}

Response 1:
{first}

Response 2:
{second}

End with {same} if both responses mean the same, or with {different} if they do not. Write nothing else."""
_TAG = re.compile(r"\[\s*(SAME|DIFFERENT)\s*\]", re.IGNORECASE)


def ask(request: str, original: str, changed: str, seed: int | str) -> str:
    """The question about two responses. Which comes first is drawn by `seed`, because models prefer places."""
    pair = [original, changed]
    if random.Random(f"order/{seed}").random() < 0.5:
        pair.reverse()
    return _QUESTION.format(request=request, first=pair[0], second=pair[1], same=SAME, different=DIFFERENT)


def read(reply: str) -> bool | None:
    """Whether the reply says that they mean the same: its first tag, or None without one."""
    found = _TAG.search(reply)
    return None if found is None else found[1].upper() == "SAME"
