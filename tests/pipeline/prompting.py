"""Rows, files and settings that the tests of prompts share."""

import json
from pathlib import Path

from hf_selfjudge.pipeline.prompts import load_prompts
from hf_selfjudge.pipeline.settings import PromptSettings

ROWS = [{"question": f"what is {n} + {n}?", "answer": f"It is <<{n}+{n}={2 * n}>>\n#### {2 * n}"} for n in range(60)]


def write_jsonl(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(tokenizer, *specs, context=None, max_new_tokens=16, **settings):
    return load_prompts(PromptSettings(prompts=tuple(map(str, specs)), **settings), tokenizer, context, max_new_tokens)


def texts(found):
    return [prompt.text for prompt in found.prompts]
