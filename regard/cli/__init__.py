"""The command line. Each verb is a file with `add` (declares its arguments) and `run` (does the work); nothing slow is imported
until a verb needs it. Errors become one line and an exit code: 2 for a user's mistake, 1 for the machine's failure, 130 for Ctrl-C.
Any other exception is a bug in Regard: a traceback, how to report it, and 70."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from regard.cli import (
    augment,
    average,
    classify,
    compare,
    completion,
    embed,
    evaluate,
    explain,
    export,
    fill,
    generate,
    import_,
    info,
    models,
    reproduce,
    score,
    search,
    serve,
    tag,
    train,
    translate,
)
from regard.cli.parsing import Parser
from regard.errors import INTERNAL_ERROR, RegardError, UserError
from regard.escaping import escape
from regard.parallel import processes
from regard.parallel.processes import ProcessInfo, first_reports, process_info
from regard.version import __version__

# In the order of --help.
VERBS = (
    train,
    translate,
    generate,
    fill,
    embed,
    search,
    classify,
    tag,
    evaluate,
    compare,
    score,
    explain,
    serve,
    export,
    import_,
    augment,
    average,
    reproduce,
    models,
    info,
    completion,
)
DISTRIBUTED = (train, translate, augment)  # the verbs that torchrun can start in several processes

_ENGINES = logging.getLogger("regard.engines")
_HALF_LINE = 800  # characters of either end of a message that is too long


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    process = ProcessInfo()
    notes = _Notes()
    _ENGINES.addHandler(notes)
    _ENGINES.setLevel(logging.INFO)
    try:
        process = process_info()
        notes.prefix = process.name
        with first_reports():
            parser = make_parser()
            if completion.VARIABLE in os.environ:
                completion.complete(parser)
            arguments = parser.parse(sys.argv[1:] if argv is None else argv)
            if process.size > 1 and arguments.run not in [verb.run for verb in DISTRIBUTED]:
                raise UserError(f"{arguments.verb} runs in one process; start it without torchrun")
        arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # a closed pipe raises here, not at exit
        return _leave(0)
    except RegardError as error:
        if str(error):  # empty where another process has printed it
            _say(f"{process.name}{error}")
        return _leave(error.exit_code)
    except KeyboardInterrupt:
        if process.is_first:
            _say("interrupted")
        return _leave(130)
    except BrokenPipeError:
        # Nobody reads our output any more; Python must not try to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _leave(1)
    except OSError as error:
        # A full disk, a read-only folder: the system's message says which.
        from regard.files import final_name

        where = f"{final_name(Path(os.fsdecode(error.filename)))}: " if isinstance(error.filename, str | bytes) else ""
        _say(f"{process.name}{where}{error.strerror or error}")
        return _leave(1)
    except Exception as error:  # noqa: BLE001 (nothing may end in a bare traceback)
        if _is_out_of_memory(error):
            _say(f"{process.name}not enough memory ({str(error).splitlines()[0] if str(error) else 'MemoryError'})")
            return _leave(1)
        sys.stderr.write(escape(traceback.format_exc(), keep="\n"))
        _say(
            f"{process.name}internal error: this is a bug in Regard {__version__}; please report it with the command and the "
            f"lines above"
        )
        return _leave(INTERNAL_ERROR)
    finally:
        _ENGINES.removeHandler(notes)


class _Notes(logging.Handler):
    """What the engines log, as lines on standard error."""

    prefix = ""

    def emit(self, record: logging.LogRecord) -> None:
        _say(f"{self.prefix}{record.getMessage()}")


def _say(message: str) -> None:
    """Write one line to standard error. Messages quote files and arguments: control characters are escaped, and of a very long
    message the middle is left out."""
    message = escape(message)
    if len(message) > 2 * _HALF_LINE:
        message = f"{message[:_HALF_LINE]} ... {message[-_HALF_LINE:]}"
    sys.stderr.write(f"regard: {message}\n")


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch on a GPU or torch on a CPU could not allocate memory; the last has no type of its own."""
    is_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_torch)


def _leave(code: int) -> int:
    """Return the exit code, or end the process here if it is one of several that have met.

    Torch caches the objects that processes exchange data through. If they outlive Python, their threads abort, or closing a GPU
    connection waits for the other processes.
    """
    if not processes.is_connected:
        return code
    if code == 0 or not sys.modules["torch"].cuda.is_initialized():
        atexit._run_exitfuncs()
    with suppress(OSError):  # the pipe is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def make_parser() -> Parser:
    """The parser of all verbs; `arguments.run` is the function of the one that was given."""
    parser = Parser(
        prog="regard",
        description='Train, use and examine models of text: the Transformer of "Attention Is All You Need" as a tool.',
        epilog="Run `regard VERB --help` for the options of a verb.",
    )
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    verbs = parser.add_verbs()
    for module in VERBS:
        module.add(verbs)
    return parser
