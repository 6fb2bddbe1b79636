"""Commands in processes of their own that do not import torch anew, which takes longer than most of what tests let them do: one
process, which lasts as long as the tests, has imported it and forks.

What depends on how Python starts, or on what is imported, needs a Python of its own: `start` and `torchrun` in `commands.py`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SLOW = (
    "torch",
    "torch._dynamo",
    "sacrebleu",
    "rich.progress",
    "regard.api",
    "regard.parallel.ranks",
    "regard.training.run",
)
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns where 127.0.0.1 has no name, as without a network
NUMBER = struct.Struct("!i")
READY = b"ready\n"


def environment(**variables: str) -> dict[str, str]:
    """For a Python that imports this checkout and computes on one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **QUIET, **variables}


class Fork:
    """A command that runs; for tests it is a `subprocess.Popen` whose standard error goes where its output goes."""

    def __init__(self, arguments: Sequence[str], encoding: str, variables: dict[str, str]) -> None:
        self.returncode: int | None = None
        self._encoding = encoding
        self._status, status = socket.socketpair()
        their_input, self._input = os.pipe()
        self._output, their_output = os.pipe()
        theirs = (status.detach(), their_input, their_output)
        request = {"arguments": arguments, "environment": environment(**variables), "folder": os.getcwd()}
        message = json.dumps(request).encode()
        parent = forking_process()
        socket.send_fds(parent, [NUMBER.pack(len(message))], theirs)
        parent.sendall(message)
        for number in theirs:
            os.close(number)
        self.pid = self._read_number()

    def _read_number(self) -> int:
        found = self._status.recv(NUMBER.size, socket.MSG_WAITALL)
        assert found, "the process that forks has ended"
        return int(NUMBER.unpack(found)[0])

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = self._read_number()
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str | None = None, timeout: float = 1e9) -> tuple[str, None]:
        """Give it this text; what it says until it ends."""
        end, said = time.monotonic() + timeout, b""
        threading.Thread(target=self._write, args=((text or "").encode(self._encoding),), daemon=True).start()
        while True:
            if not select.select([self._output], [], [], max(end - time.monotonic(), 0.0))[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout, said)
            part = os.read(self._output, 65_536)
            if not part:
                break
            said += part
        os.close(self._output)
        self.wait(max(end - time.monotonic(), 0.0))
        return said.decode(self._encoding).replace("\r\n", "\n").replace("\r", "\n"), None

    def _write(self, content: bytes) -> None:
        with suppress(BrokenPipeError), open(self._input, "wb") as file:  # it may not read
            file.write(content)


@functools.cache
def forking_process() -> socket.socket:
    """Start it, with pipes as its forks have them; it ends when the tests do and the other end of its socket is closed."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
        pass_fds=[theirs.fileno()], cwd=ROOT, env=environment(), start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    theirs.close()
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == READY, (said + process.stdout.read()).decode()

    @atexit.register
    def end() -> None:
        ours.close()
        process.communicate()

    return ours


# --- in the process that forks ---


def serve(control: socket.socket) -> list[str] | None:
    """Fork for each request that comes, and report how the commands ended. In the fork: the arguments of its command."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            report(running)
        if control in ready:
            header, received, _, _ = socket.recv_fds(control, NUMBER.size, 3)
            if not header:
                return None
            request = json.loads(control.recv(NUMBER.unpack(header)[0], socket.MSG_WAITALL))
            pid = os.fork()
            status = socket.socket(fileno=received[0])
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (control, woken, wake, status, *running.values()):
                    one.close()
                return become(request, received[1], received[2])
            for number in received[1:]:
                os.close(number)
            status.sendall(NUMBER.pack(pid))
            running[pid] = status


def report(running: dict[int, socket.socket]) -> None:
    """Tell how those that have ended did so."""
    for pid in list(running):
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as status, suppress(BrokenPipeError):  # perhaps nobody asks any more
                status.sendall(NUMBER.pack(os.waitstatus_to_exitcode(how)))


def become(request: dict[str, Any], stdin: int, stdout: int) -> list[str]:
    """Make this process the one that was asked for."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, standard in ((stdin, 0), (stdout, 1), (stdout, 2)):
        os.dup2(number, standard)
    os.close(stdin)
    os.close(stdout)
    arguments: list[str] = request["arguments"]
    return arguments


def run(arguments: list[str]) -> None:
    """As `python ARGUMENTS` does."""
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for name in SLOW:
        import_module(name)
    os.write(1, READY)
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        run(command)
