"""vLLM's OpenAI-compatible server with the plug-in, as a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from hf_selfjudge.playground import ASSETS

NAME = "playground"
START_S = 300


class Server:
    """Starts, kills and starts again on the same port.

    Args:
        draft_folder: the embedded draft as vLLM reads it.
        gamma: tokens drafted per block.
        log: file for what the server prints.
    """

    def __init__(self, draft_folder, gamma, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        speculation = {"method": "draft_model", "model": draft_folder, "num_speculative_tokens": gamma}
        options = {
            "model": str(ASSETS / "target"),
            "served-model-name": NAME,
            "dtype": "float32",
            "max-model-len": "512",
            "max-num-seqs": "8",
            "host": "127.0.0.1",
            "port": str(self.port),
            "speculative-config": json.dumps(speculation),
            "worker-cls": "hf_selfjudge.vllm.SelfJudgeWorker",
            "additional-config": json.dumps({"selfjudge": {"judge": str(ASSETS / "judge"), "threshold": "f1"}}),
            "middleware": "hf_selfjudge.vllm.server.SelfJudgeMiddleware",
        }
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *given]
        # dev mode has the route /collective_rpc; a server's engine runs in a process of its own
        self._environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        self._environment.update(VLLM_LOGGING_LEVEL="INFO", HF_HUB_OFFLINE="1")

    def start(self):
        with self.log.open("ab") as log:
            # a session of its own, because the engine's processes outlive a server that is killed
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        self.kill()
        raise RuntimeError(f"The server did not start:\n{self.log.read_text()[-4000:]}")

    def kill(self):
        """`kill -9` of the server and its engine."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def rpc(self, method, *args):
        body = json.dumps({"method": method, "args": args}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/collective_rpc", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())["results"][0]

    def counters(self):
        """The metrics that have to do with speculation, by name."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith("vllm:s")]
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
