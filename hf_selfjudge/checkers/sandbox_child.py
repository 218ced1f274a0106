"""The sandbox inside the child process: set its limits, put up guards, run the program as `__main__`.

Started by `sandbox.run` as a script of its own, with its folder and the limits as JSON; standard library only.
The guards are an audit hook. They stop what a program does by mistake; a program that wants to can get around them.
Python tells the hook neither of os.mkfifo and os.mknod nor of the folder (dir_fd) that os.open is given, and a sqlite3
address (uri=True) is no path, so with these a program can make files elsewhere.
"""

from __future__ import annotations

import builtins
import json
import os
import resource
import sys
import types
from collections.abc import Callable
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.removexattr": ((0, None),),
    "os.rmdir": ((0, 1),),
    "os.setxattr": ((0, None),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
    "sqlite3.connect": ((0, None),),
}
"""Events that change files: where in their arguments the paths are, each with the folder it is relative to."""
STARTS = frozenset(
    {"os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.spawn", "subprocess.Popen"}
)
"""Events that start other programs, which would run without these guards."""
FORKS = frozenset({"os.fork", "os.forkpty"})
LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname", "socket.getnameinfo"})
AF_UNIX = 1
"""Sockets within the machine; event loops need a pair of them."""


def set_limits(limits: dict[str, Any]) -> None:
    """Kernel limits, inherited by every process that the program starts."""
    wanted = {
        "RLIMIT_AS": limits["memory"],
        "RLIMIT_CPU": limits["cpu_seconds"],
        "RLIMIT_FSIZE": limits["file_bytes"],
        "RLIMIT_NOFILE": limits["open_files"],
        "RLIMIT_CORE": 0,
    }
    if limits["tasks"] is not None:
        wanted["RLIMIT_NPROC"] = limits["tasks"]
    for name, value in wanted.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):  # not every system knows every limit
            if sys.platform == "linux":
                raise


def fork_tickets(count: int) -> int:
    """A pipe from which each fork takes one byte: all processes share it, and an empty or closed one means no more."""
    reader, writer = os.pipe()
    os.write(writer, b"." * count)
    os.close(writer)
    return reader


def guard(folder: str, forks: int) -> Callable[[str, tuple[Any, ...]], None]:
    """The audit hook of a program that works in `folder` and may fork so many times."""
    tickets = fork_tickets(forks)

    def inside(path: Any, base: Any) -> bool:
        path = os.fsdecode(path)
        if not os.path.isabs(path) and isinstance(base, int) and base >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{base}"), path)
        path = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
        return path == os.devnull or os.path.realpath(path).startswith(folder + os.sep)

    def refuse(what: str) -> None:
        raise PermissionError(f"the sandbox does not let a program {what}")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & WRITING and not isinstance(path, int) and not inside(path, None):
                refuse("write outside of its folder")
        elif event in CHANGES:
            for path_at, base_at in CHANGES[event]:
                path = arguments[path_at]
                base = None if base_at is None else arguments[base_at]
                if not isinstance(path, int) and not inside(path, base):
                    refuse("change files outside of its folder")
        elif event in FORKS:
            if not os.read(tickets, 1):
                refuse("start more processes")
        elif event in STARTS:
            refuse("start other programs")
        elif event in ("os.kill", "os.killpg"):
            to = arguments[0]
            known = to == os.getpgrp() if event == "os.killpg" else to > 0 and os.getpgid(to) == os.getpgrp()
            if not known:
                refuse("send signals to other programs")
        elif event in LOOKUPS or (event == "socket.__new__" and arguments[1] not in (AF_UNIX, -1)):
            refuse("use the network")

    return hook


def wait(process: int) -> int:
    """The exit code of a process, as a shell would tell it: 128 and the signal that ended it."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code


def main() -> None:
    """Read the program, close the doors and run it."""
    root, limits = sys.argv[1], json.loads(sys.argv[2])
    with open(os.path.join(root, "program.py"), encoding="utf-8") as file:
        source = file.read()
    program = os.fork()
    if program:  # signals do not end the first process of a namespace, so the program is its child
        os._exit(wait(program))
    sys.argv = ["program.py"]
    # what the module `site` would do, in a third of the time
    sys.path += limits["paths"]
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    hook = guard(os.path.realpath(os.getcwd()), limits["forks"])
    set_limits(limits)
    sys.addaudithook(hook)
    exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
