"""How a server is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from regard.errors import UserError
from regard.serve.web.server import listen
from tests.serve.server import GOLDEN, ROOT, running


def test_answers_do_not_wait_for_acknowledgements() -> None:
    # asyncio turns Nagle's algorithm off only on sockets that name their protocol.
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        assert listener.getsockname()[1] > 0


def test_a_port_that_is_taken_is_said_before_models_are_loaded() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"cannot listen on 127.0.0.1 port {port} \(.*\); choose another with --port"
        ):
            listen("127.0.0.1", port)


def test_without_the_extra_one_line_says_how_to_get_it() -> None:
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "fastapi":
            raise ModuleNotFoundError("blocked", name=name)
sys.meta_path.insert(0, Block())
from regard.cli import main
sys.exit(main(["serve", "-m", {str(GOLDEN)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == (
        "regard: serve needs the package fastapi, which is missing; install it with pip install 'regard[serve]'\n"
    )


def test_on_a_terminal_it_says_where_it_is_in_plain_words() -> None:
    reading, terminal = os.openpty()
    command = [sys.executable, "-m", "regard", "serve", "-m", str(GOLDEN), "--port", "0"]
    with subprocess.Popen(command, stderr=terminal, cwd=ROOT) as process:
        os.close(terminal)
        said = b""
        while b"Ctrl-C" not in said:
            said += os.read(reading, 1000)
        process.kill()
    os.close(reading)
    assert re.search(rb"\n  Open http://127\.0\.0\.1:\d+ in a browser; Ctrl-C", said)


def test_help_names_what_is_asked_most() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "regard", "serve", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    for option in ("--host", "--port", "--keys", "--limit", "--workers", "--run"):
        assert option in done.stdout


def test_a_signal_right_after_the_line_that_it_listens_ends_it_in_order() -> None:
    code = """
import time
from regard.serve.web.server import GracefulShutdown
install = GracefulShutdown.install
def slowly(self):
    time.sleep(0.5)
    install(self)
GracefulShutdown.install = slowly
"""
    with running(code=code) as server:
        assert '"stopped"' in server.stop()[-1]
