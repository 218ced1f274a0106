"""The real client in a process of its own: the endpoint is read on import, and a fresh process has an empty cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

LOOP = """
import json, sys, traceback
names = {}
for line in sys.stdin:
    names["result"] = None
    try:
        exec(json.loads(line), names)
        answer = {"result": names["result"]}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        answer = {"error": str(error), "kinds": kinds, "trace": traceback.format_exc()}
    print("answer:" + json.dumps(answer), flush=True)
"""


class Failed(Exception):
    """What a call in the other process raised."""

    def __init__(self, answer: dict) -> None:
        super().__init__(answer["error"])
        self.kinds = answer["kinds"]
        self.trace = answer["trace"]


class Client:
    """A process that runs code against a stand-in Hub; `client(code)` gives what the code left in `result`."""

    def __init__(self, endpoint: str, home: Path, token: str | None = None) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
        env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        env |= {} if token is None else {"HF_TOKEN": token}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def send(self, code: str, **values: object) -> None:
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        self.process.stdin.write(json.dumps(head + code) + "\n")
        self.process.stdin.flush()

    def __call__(self, code: str, **values: object) -> object:
        self.send(code, **values)
        for line in self.process.stdout:
            if line.startswith("answer:"):
                answer = json.loads(line.removeprefix("answer:"))
                if "error" in answer:
                    raise Failed(answer)
                return answer["result"]
        raise RuntimeError(f"the client died with {self.process.wait()}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
