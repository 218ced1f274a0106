"""Run a Python program that nobody has read: in a process of its own, with limits on everything it can use up.

Every run has an empty working folder, a small environment and limits on time, memory, processes, file sizes and output.
Where the system lets an ordinary user make namespaces (`unshare` of util-linux), a run has no network and its processes
cannot outlive it, whatever they do. Elsewhere sockets are refused by an audit hook in the child and its process group
is killed at the end. The hook also refuses writes outside of the folder, other programs and signals to strangers. It is
a guard against accidents, not a security boundary: code that may be hostile belongs in a container.
"""

from __future__ import annotations

import functools
import json
import math
import os
import selectors
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
STATUSES = ("ok", "failed", "timeout", "memory", "output", "killed")
"""Exit code 0; another exit code; out of time (wall or CPU); out of memory; printed too much; ended by a signal."""
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Limits:
    """What one run may use. Memory is per process, the rest is per run."""

    cpu_seconds: int = 10
    wall_seconds: float = 20.0
    """Longer than the CPU time, because other runs share the machine."""
    memory: int = 1 << 30
    """Bytes of address space of a process."""
    forks: int = 16
    """How often the program may fork."""
    file_bytes: int = 16 << 20
    """Size of a file it writes."""
    open_files: int = 64
    output_bytes: int = 4 << 20
    """Bytes kept of stdout and of stderr; a program that prints more is stopped."""


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    status: str
    """One of `STATUSES`."""
    stdout: str
    stderr: str
    seconds: float
    """Wall time."""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_SLOTS = threading.BoundedSemaphore(cores())  # however many threads ask, no more programs run at once


def run(program: str, stdin: str = "", limits: Limits | None = None) -> Result:
    """Run a program's source text with `stdin`, and wait for its end or its limits."""
    if os.name != "posix":
        raise NotImplementedError(
            f"The sandbox runs on Linux and macOS, not on {sys.platform}: label without code tasks."
        )
    limits = limits or Limits()
    with _SLOTS, tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as name:
        root = Path(name).resolve()
        folder = root / "work"
        folder.mkdir()
        # a lone surrogate cannot be written; the program gets a question mark, as a reader of its output would
        (root / "program.py").write_bytes(program.encode(errors="replace"))
        (root / "stdin").write_bytes(stdin.encode(errors="replace"))
        with (root / "stdin").open("rb") as source:
            return _watch(_start(root, folder, source.fileno(), limits), limits)


def run_many(jobs: Sequence[tuple[str, str]], limits: Limits | None = None) -> list[Result]:
    """Run several (program, stdin) side by side; the results are in the order of the jobs."""
    with ThreadPoolExecutor(min(len(jobs), cores()) or 1) as pool:
        return list(pool.map(lambda job: run(job[0], job[1], limits), jobs))


@functools.cache
def isolation() -> tuple[str, ...]:
    """The command that gives a program its own network and processes; empty where the system does not allow it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, "--user", "--net", "--pid", "--fork", "--kill-child")
    tried = subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    return command if tried.returncode == 0 else ()


def _start(root: Path, folder: Path, stdin: int, limits: Limits) -> subprocess.Popen[bytes]:
    """Start the child in a new session, so that the whole group can be killed."""
    wanted = {
        "cpu_seconds": math.ceil(limits.cpu_seconds),
        "memory": limits.memory,
        "file_bytes": limits.file_bytes,
        "open_files": limits.open_files,
        "forks": limits.forks,
        "tasks": _tasks(limits.forks),
        "paths": site.getsitepackages(),
    }
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # a program that prints a set must print it the same way every time
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [*isolation(), sys.executable, "-S", "-s", "-P", "-B", str(CHILD), str(root), json.dumps(wanted)],
        cwd=folder,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _tasks(forks: int) -> int | None:
    """The kernel's limit on tasks is per user, so it must leave room for all that run already; root has no limit."""
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    except (OSError, ValueError, IndexError):
        return None
    return running + forks + 64  # and some threads


def _watch(child: subprocess.Popen[bytes], limits: Limits) -> Result:
    """Read what the child prints until it ends or breaks a limit, then kill all that is left of it."""
    begun = time.monotonic()
    assert child.stdout is not None
    assert child.stderr is not None
    kept: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    stopped: str | None = None
    with child, selectors.DefaultSelector() as selector:
        for descriptor in kept:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        try:
            while stopped is None:
                # asked before reading, so that the last words of a child that has ended are read too
                ended = _has_ended(child)
                left = begun + limits.wall_seconds - time.monotonic()
                if not _read(selector, kept, limits.output_bytes, 0.0 if ended else min(POLL_SECONDS, max(left, 0.0))):
                    stopped = "output"
                elif ended:
                    break
                elif left <= 0:
                    stopped = "timeout"
        finally:
            _kill_group(child.pid)
        child.wait()
    stdout, stderr = (bytes(text[: limits.output_bytes]).decode(errors="replace") for text in kept.values())
    seconds = time.monotonic() - begun
    return Result(stopped or _status(child.returncode, stderr, seconds, limits), stdout, stderr, seconds)


def _read(selector: selectors.BaseSelector, kept: dict[int, bytearray], most: int, patience: float) -> bool:
    """Read all there is; False when one of the outputs has become too long."""
    if not selector.get_map():  # the child has closed its outputs, but may still be running
        time.sleep(patience)
    ready = selector.select(patience) if selector.get_map() else []
    while ready:
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            kept[key.fd] += data
            if not data:
                selector.unregister(key.fd)
            if len(kept[key.fd]) > most:
                return False
        ready = selector.select(0) if selector.get_map() else []
    return True


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended, without giving its number free: that is still needed to kill its group."""
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter when only zombies are left
        os.killpg(group, signal.SIGKILL)


def _status(code: int, stderr: str, seconds: float, limits: Limits) -> str:
    """What an exit code and the last words mean."""
    if code == 0:
        return "ok"
    ended_by = code - 128 if code > 128 else -code
    if ended_by == signal.SIGXCPU or (ended_by == signal.SIGKILL and seconds > limits.cpu_seconds - 1):
        return "timeout"
    if stderr.rstrip().rpartition("\n")[2].startswith("MemoryError"):
        return "memory"
    return "killed" if ended_by > 0 else "failed"
