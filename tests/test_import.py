"""What `import hf_selfjudge` costs, and what it leaves alone."""

import json
import subprocess
import sys

import pytest

import hf_selfjudge

HEAVY = ("sklearn", "datasets", "lm_eval", "matplotlib", "torch", "vllm")
CODE = f"""
import json, sys, time
import transformers
loaded = set(sys.modules)
begun = time.perf_counter()
import hf_selfjudge
seconds = time.perf_counter() - begun
print(json.dumps([seconds, [name for name in {HEAVY} if name in sys.modules and name not in loaded]]))
"""


def test_the_import_is_cheap_and_loads_nothing_heavy():
    runs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    assert min(seconds for seconds, _ in runs) < 0.3
    assert all(heavy == [] for _, heavy in runs)


def test_every_public_name_is_there():
    for name in hf_selfjudge.__all__:
        assert getattr(hf_selfjudge, name).__name__ == name
    assert dir(hf_selfjudge) == sorted(hf_selfjudge.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Judge'"):
        _ = hf_selfjudge.Judge
