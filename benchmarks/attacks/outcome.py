"""What an attack can end in, and commands run in a process of their own."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.cli import main
from regard.errors import INTERNAL_ERROR

Verdict = Literal["survived", "silent", "traceback", "hang", "memory"]
_MOST_MEMORY = 3_000_000_000  # bytes of a command: torch and a small model take a tenth
_MODULES = (
    "ctranslate2",
    "regard.api",
    "regard.generate.engines.ctranslate2_engine",
    "regard.generate.engines.torch_engine",
    "regard.serve.web.server",
    "regard.training.run",
    "regard.translation.documents.formats",
    "sentencepiece",
    "torch._dynamo",
)
_SAID = 400  # characters of a failure that are shown


@dataclass
class Tally:
    """The verdicts of one kind of attack."""

    name: str
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    note: str = ""  # what else was measured

    def add(self, case: str, verdict: Verdict, said: str = "") -> None:
        """Count a case; one that did not survive is shown."""
        self.verdicts[verdict] += 1
        if verdict != "survived":
            self.failures.append(f"{self.name}: {case}: {verdict}: {said[-_SAID:]!r}")
            print(f"  {self.failures[-1]}", flush=True)

    @property
    def row(self) -> dict[str, str | int]:
        """The row of the table."""
        found = self.verdicts
        return {
            "attack": self.name,
            "tried": found.total(),
            "survived": found["survived"],
            "silent": found["silent"],
            "tracebacks": found["traceback"],
            "hangs": found["hang"] + found["memory"],
        }


@dataclass(frozen=True)
class Done:
    """How a command ended; `code` is None if it had to be killed."""

    code: int | None
    out: str
    err: str
    memory: int  # bytes, at most

    def verdict(self, right: str | None = None, *, must_refuse: bool = False) -> Verdict:
        """A refusal is one line and exit code 2 or 1; a result must be the right one, if that is known."""
        if self.code is None:
            return "hang"
        if self.memory > _MOST_MEMORY:
            return "memory"
        if self.code in (1, 2):
            lines = self.err.strip().splitlines()
            is_said = bool(lines) and lines[-1].startswith("regard: ") and "Traceback" not in self.err
            return "survived" if is_said else "traceback"
        if self.code == INTERNAL_ERROR or self.code != 0 or "Traceback" in self.err:
            return "traceback"
        return "silent" if must_refuse or (right is not None and self.out.strip() != right) else "survived"


def preload() -> None:
    """Import what commands import when they need it, so that each copy of this process has it."""
    for name in _MODULES:
        importlib.import_module(name)


def run_command(
    arguments: Sequence[str], *, seconds: float = 60, before: Callable[[], None] | None = None, stdin: str = ""
) -> Done:
    """`regard` with these arguments in a copy of this process, which spares it the imports; `before` runs there first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").write_text(stdin, encoding="utf-8")
        child = os.fork()
        if child == 0:
            _become(arguments, folder, before)
        end = time.monotonic() + seconds
        while (found := os.wait4(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                found = os.wait4(child, 0)
                break
            time.sleep(0.005)
        is_late = time.monotonic() > end
        out, err = ((folder / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
        code = None if is_late else os.waitstatus_to_exitcode(found[1])
        return Done(code, out, err, found[2].ru_maxrss * 1024)


def _become(arguments: Sequence[str], folder: Path, before: Callable[[], None] | None) -> None:
    """Turn this process into the command; never returns."""
    code = 99
    try:
        for number, (stream, flags) in enumerate(
            [("in", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT)]
        ):
            os.dup2(os.open(folder / stream, flags, 0o600), number)
        sys.stdin = os.fdopen(0, "r", encoding="utf-8")
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
        if before is not None:
            before()
        code = main(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as leaving:  # --version and --help
        code = leaving.code if isinstance(leaving.code, int) else 99
    finally:
        os._exit(code)
