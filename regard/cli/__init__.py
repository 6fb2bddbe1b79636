"""The command line: verbs to typed functions. Errors become one clear line and an exit code: 2 for what the person can repair,
1 for anything else. Each verb is a file with `add` (its arguments) and `run`; nothing slow is imported until a verb needs it."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from regard.cli import augment, average, evaluate, explain, export, import_, info, score, serve, train, translate
from regard.errors import RegardError, UserError
from regard.parallel import processes
from regard.parallel.processes import Place, first_speaks, own_place
from regard.version import __version__

# As --help lists them.
VERBS = (train, translate, evaluate, score, explain, serve, export, import_, augment, average, info)
SHARED_OUT = (train, translate, augment)  # what several processes of torchrun can do together


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    place = Place()
    try:
        place = own_place()
        with first_speaks():
            arguments = make_parser().parse_args(argv)
            if place.size > 1 and arguments.run not in [verb.run for verb in SHARED_OUT]:
                raise UserError(f"{arguments.verb} is work for one process; start it without torchrun")
        arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # so that a reader who has left is noticed here
        return _leave(0)
    except RegardError as error:
        if str(error):  # else another process has said it
            sys.stderr.write(f"regard: {place.name}{error}\n")
        return _leave(error.exit_code)
    except KeyboardInterrupt:
        if place.is_first:
            sys.stderr.write("regard: interrupted\n")
        return _leave(130)
    except BrokenPipeError:
        # The reader of our output has left; nothing more can be said to it, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _leave(1)
    except OSError as error:
        # A full disk, a folder that may not be written: the system's own words say what.
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"regard: {place.name}{where}{error.strerror or error}\n")
        return _leave(1)
    except Exception:
        if processes.have_met:
            traceback.print_exc()
            _leave(1)
        raise


def _leave(code: int) -> int:
    """The exit code; but one of several processes that have met ends here. What torch has for their exchange may live on in its own
    caches: threads that abort where they meet the end of Python, or GPUs' connections whose end waits for the others."""
    if not processes.have_met:
        return code
    if code == 0 or not sys.modules["torch"].cuda.is_initialized():
        atexit._run_exitfuncs()
    with suppress(OSError):  # who reads it has left
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="regard",
        description='The Transformer of "Attention Is All You Need" as a tool: train, translate, evaluate.',
        epilog="regard VERB --help tells more of each.",
    )
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for module in VERBS:
        module.add(verbs)
    return parser
