"""The exceptions that Regard raises on purpose.

    RegardError            anything below; the command line exits with 1
      UserError            an input, a file or an option is wrong; exits with 2
        InputError         a text or document is malformed; the message never quotes it, so a server may send it back
          InputTooLarge    it exceeds a limit
      NoRoom               the disk is full, or a quota or limit is used up
      Interrupted          stopped with Ctrl-C, with the work saved; exits with 130

Any other exception but an OSError or a MemoryError, which exit with 1, is a bug: the command line exits with 70 and says how to
report it.

A UserError is one line: the file, line or field, the rule, what came instead, and the remedy if there is one. It is shown
without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

INTERNAL_ERROR = 70  # the exit code of a bug, EX_SOFTWARE of sysexits.h


class RegardError(Exception):
    """Base of every exception that Regard raises on purpose."""

    exit_code = 1


class UserError(RegardError):
    """Something the user can fix: a file, an option or a recipe is wrong."""

    exit_code = 2


class InputError(UserError):
    """A text, a document or a request is malformed. The message names the field and the rule but never quotes the input, so a
    server may send it back."""


class InputTooLarge(InputError):
    """The input exceeds a limit."""


class NoRoom(RegardError):
    """A file cannot be written, since the disk is full, or a quota or limit is used up."""


class Interrupted(RegardError):
    """The user stopped the work. Everything so far is saved, and the message says how to resume."""

    exit_code = 130


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Put the name of a file or folder before the message of a check."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
