"""The sandbox: every way of misbehaving ends, costs little and leaves nothing behind."""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hf_selfjudge.checkers import sandbox
from hf_selfjudge.checkers.sandbox import Limits, Result, run, run_many

QUICK = Limits(cpu_seconds=2, wall_seconds=10.0, memory=256 << 20, forks=4, output_bytes=100_000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(params=["namespaces", "guards"])
def limits(request, monkeypatch, tmp_path):
    """Quick limits, once with the system's namespaces and once without; temporary folders lie in the test's own."""
    if request.param == "guards":
        monkeypatch.setattr(sandbox, "isolation", lambda: ())
    elif not sandbox.isolation():
        pytest.skip("no namespaces for ordinary users here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return QUICK


def left_over(folder: Path) -> list[str]:
    """Processes that were started for a run in this folder and are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(entry.name)
    return found


def nothing_left(folder: Path) -> bool:
    """The kernel may take a moment to bury the killed."""
    for _ in range(100):
        if not left_over(folder) and not list(folder.iterdir()):
            return True
        time.sleep(0.02)
    return False


def test_a_program_reads_and_prints(limits):
    program = "import sys\nname = input()\nprint('Hello', name)\nprint('ä', file=sys.stderr)"
    result = run(program, "Wörld\n", limits)
    assert (result.status, result.stdout, result.stderr) == ("ok", "Hello Wörld\n", "ä\n")
    assert 0 < result.seconds < limits.wall_seconds


def test_it_runs_as_main_in_an_empty_folder_with_a_small_environment(limits, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    program = "import os, sys\nprint(__name__, os.listdir(), 'SECRET' in os.environ, sys.argv, hash('a'))"
    first, second = run(program, "", limits), run(program, "", limits)
    assert first.stdout.startswith("__main__ [] False ['program.py'] ")
    assert first.stdout == second.stdout  # hashes too, so that sets print alike


@pytest.mark.parametrize(
    ("program", "status", "message"),
    [
        ("def f(:", "failed", "SyntaxError"),
        ("raise SystemExit(3)", "failed", ""),
        ("1 / 0", "failed", "ZeroDivisionError"),
        ("import os; os.abort()", "killed", ""),
        ("import sys; sys.exit(0)", "ok", ""),
        ("print('\\ud800')", "ok", ""),
    ],
)
def test_how_programs_end(program, status, message):
    result = run(program, "", QUICK)
    assert result.status == status
    assert message in result.stderr


@linux
@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_endless_programs_are_stopped(limits, tmp_path, program):
    result = run(program, "", replace(limits, wall_seconds=0.5))
    assert result.status == "timeout"
    assert 0.4 < result.seconds < 5
    assert nothing_left(tmp_path)


def test_cpu_time_is_limited_too(limits):
    result = run("while True: pass", "", replace(limits, cpu_seconds=1))
    assert result.status == "timeout"
    assert result.seconds < 10


@linux
def test_memory_is_limited(limits):
    assert run("x = bytearray(1 << 30)", "", limits).status == "memory"
    assert run("x = bytearray(1 << 20); print(len(x))", "", limits).status == "ok"


def test_output_is_capped_while_it_is_read(limits):
    for stream in ("stdout", "stderr"):
        program = f"import sys\nwhile True: sys.{stream}.write('x' * 10000)"
        result = run(program, "", limits)
        assert result.status == "output"
        assert len(getattr(result, stream)) == limits.output_bytes
        assert result.seconds < 10


@linux
def test_a_fork_bomb_fizzles_out(limits, tmp_path):
    program = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    result = run(program, "", replace(limits, wall_seconds=0.7))
    assert result.status == "timeout"
    assert nothing_left(tmp_path)


def test_forks_are_counted_over_all_processes(limits):
    program = (
        "import os\n"
        "def grow(depth):\n"
        "    if depth:\n"
        "        for _ in range(2):\n"
        "            try:\n"
        "                if os.fork() == 0:\n"
        "                    grow(depth - 1); os._exit(0)\n"
        "            except PermissionError:\n"
        "                os.write(1, b'refused\\n')\n"
        "grow(4)\n"
        "while True:\n"
        "    try: os.wait(); os.write(1, b'child\\n')\n"
        "    except ChildProcessError: break\n"
    )
    result = run(program, "", limits)
    assert result.status == "ok"
    assert "refused" in result.stdout


@linux
def test_a_child_in_the_background_does_not_survive(limits, tmp_path):
    program = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('parent ends')"
    result = run(program, "", limits)
    assert (result.status, result.stdout) == ("ok", "parent ends\n")
    assert result.seconds < limits.wall_seconds  # it holds stdout open, but nobody waits for it
    assert nothing_left(tmp_path)


@linux
@pytest.mark.skipif(not sandbox.isolation(), reason="needs namespaces")
def test_not_even_in_a_session_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('parent ends')"
    assert run(program, "", QUICK).stdout == "parent ends\n"
    assert nothing_left(tmp_path)


def test_files_stay_in_the_folder_and_are_not_huge(limits, tmp_path):
    outside = tmp_path / "precious.txt"
    outside.write_text("keep")
    program = (
        "import os, shutil, pathlib, sqlite3\n"
        "open('a.txt', 'w').write('x'); os.rename('a.txt', 'b.txt'); os.mkdir('d'); shutil.rmtree('d')\n"
        "print(open('b.txt').read(), os.listdir())\n"
        "open(os.devnull, 'w').write('x')\n"
        "sqlite3.connect('d.db').close(); os.remove('d.db'); sqlite3.connect(':memory:').close()\n"
        f"there = {str(outside)!r}\n"
        "for attempt in (lambda: open(there, 'w'), lambda: os.remove(there), lambda: os.rename('b.txt', there),\n"
        "                lambda: os.truncate(there, 0), lambda: shutil.rmtree(os.path.dirname(there)),\n"
        "                lambda: os.open(there, os.O_WRONLY), lambda: pathlib.Path(there).unlink(),\n"
        "                lambda: os.symlink(there, '../link'), lambda: os.chmod(there, 0),\n"
        "                lambda: sqlite3.connect(there)):\n"
        "    try:\n"
        "        attempt(); print('done')\n"
        "    except PermissionError as error:\n"
        "        print('refused')\n"
    )
    result = run(program, "", limits)
    assert result.stdout == "x ['b.txt']\n" + "refused\n" * 10, result.stderr
    assert outside.read_text() == "keep"
    huge = "with open('big', 'wb') as f:\n    for _ in range(100): f.write(bytes(1 << 20))"
    assert run(huge, "", limits).status in ("failed", "killed")


@linux
def test_attributes_of_files_outside_stay_as_they_are(limits, tmp_path):
    outside = tmp_path / "precious.txt"
    outside.write_text("keep")
    for call in (f"setxattr({str(outside)!r}, 'user.x', b'1')", f"removexattr({str(outside)!r}, 'user.x')"):
        assert "the sandbox does not let" in run(f"import os; os.{call}", "", limits).stderr


def test_no_network_no_other_programs_no_signals_to_others(limits):
    program = (
        "import os, signal, socket, subprocess\n"
        "for attempt in (lambda: socket.socket(), lambda: socket.getaddrinfo('localhost', 80),\n"
        "                lambda: subprocess.run(['true']), lambda: os.system('true'),\n"
        "                lambda: os.execv('/bin/sh', ['sh']),\n"
        "                lambda: os.kill(-1, signal.SIGTERM)):\n"
        "    try:\n"
        "        attempt(); print('done')\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))\n"  # event loops need one
    )
    result = run(program, "", limits)
    assert result.stdout == "refused\n" * 6 + "b'x'\n", result.stderr


def test_threads_are_allowed(limits):
    program = (
        "import threading\n"
        "threading.stack_size(1 << 26)\n"
        "t = threading.Thread(target=lambda: print('from a thread'))\n"
        "t.start(); t.join()"
    )
    assert run(program, "", limits).stdout == "from a thread\n"


def test_many_runs_keep_their_order_and_share_the_machine():
    results = run_many([("print(input())", str(number)) for number in range(6)], QUICK)
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(6)]
    assert run_many([], QUICK) == []
    assert all(isinstance(result, Result) for result in results)
