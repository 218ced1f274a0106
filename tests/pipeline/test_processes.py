"""Several processes: what one finds all know, and when one fails none is left waiting."""

import json
import os
import socket
import subprocess
import sys

SCRIPT = """
import json, os
from hf_selfjudge.pipeline.storage.processes import processes

rank = int(os.environ["RANK"])
found = []


def attempt(work):
    try:
        found.append(work())
    except Exception as error:
        found.append([type(error).__name__, str(error)])


def part(fails):
    with group.together():
        if rank == 1 and fails:
            raise ValueError("no good")
    return "went on"


with processes(device="cpu") as group:
    attempt(lambda: [group.rank, group.world, group.mine([3, 4, 5])])
    attempt(lambda: group.by_first(lambda: {"rank": rank, "text": "\\u00e9" * 50}))
    attempt(lambda: part(fails=False))
    attempt(lambda: group.by_first(lambda: 1 / 0))
    attempt(lambda: part(fails=True))
    if rank == 1:
        print(json.dumps(found), flush=True)
        os._exit(9)
    attempt(lambda: part(fails=False))
    print(json.dumps(found), flush=True)
"""


def test_all_learn_what_one_finds_and_that_one_fails_or_dies():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **launched, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 9], said
    first, second = (json.loads(out) for out, _ in said)
    assert first[:5] == [
        [0, 2, [3, 5]],
        {"rank": 0, "text": "é" * 50},
        "went on",
        ["ZeroDivisionError", "division by zero"],
        ["ChildProcessError", "Process 1 of 2 failed: no good"],
    ]
    assert second == [
        [1, 2, [4]],
        {"rank": 0, "text": "é" * 50},
        "went on",
        ["ChildProcessError", "Process 0 of 2 failed: ZeroDivisionError: division by zero"],
        ["ValueError", "no good"],
    ]
    assert first[5][0] == "ConnectionError"
    assert "Process 0 of 2 lost another one, which has died" in first[5][1]
