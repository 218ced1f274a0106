"""Two tensor parallel ranks on a CPU: both judge alike, and the tokens are those of the Hugging Face loop."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_engines import ENGINE, GAMMA, plain

from hf_selfjudge.playground import ASSETS

pytestmark = pytest.mark.vllm


def test_two_ranks(embedded, hf_loop, draft_folder, prompts):
    asked = {
        "target": str(ASSETS / "target"),
        "draft": draft_folder,
        "judge": str(ASSETS / "judge"),
        "gamma": GAMMA,
        "engine": {**ENGINE, "distributed_executor_backend": "mp", "tensor_parallel_size": 2},
        "prompts": prompts,
        "extra_args": [{"selfjudge": "off"}] + [None] * (len(prompts) - 1),
    }
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("tp_child.py"))],
        input=json.dumps(asked),
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    results = [line for line in child.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, child.stdout[-3000:] + child.stderr[-3000:]
    found = json.loads(results[0].removeprefix("RESULT "))
    expected = [plain(embedded[0], prompts[0], 96)] + [hf_loop(prompt, "f1")[0] for prompt in prompts[1:]]
    assert found["tokens"] == expected
    first, second = found["statistics"]
    assert first == second
    assert first["judge_accepted"] > 0
