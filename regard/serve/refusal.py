"""Reasons to refuse a request, apart from errors in the request itself (`InputError`); `web/status.py` maps them to HTTP. Messages
name the field and the rule and never quote the request, which may be private text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from regard.bundle import BundleGone
from regard.errors import InputError, RegardError, UserError


class LanguageError(InputError):
    """A language that is not served; each API has its own name for the field."""

    def __init__(self, field: Literal["source", "target"], rule: str) -> None:
        super().__init__(f"{field} {rule}")
        self.field, self.rule = field, rule


class Refused(RegardError):
    """The request is refused; the client may try again after `retry` seconds, if given."""

    def __init__(self, message: str, retry: int | None = None) -> None:
        super().__init__(message)
        self.retry = retry


class Busy(Refused):
    """Too many requests are waiting, or the client has exceeded its rate."""


class Forbidden(Refused):
    """The API key is missing or unknown."""


class Unavailable(Refused):
    """The model can no longer be used."""


class NotInstalled(Refused):
    """The request needs a package that this machine lacks."""


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn errors of a computation named `what` into refusals: torch may be imported and the weights read long after the start.
    Other user errors are passed on to the client; they mention numbers of tokens and never quote text."""
    try:
        yield
    except BundleGone:  # its message names the folder
        raise Unavailable(
            "the model's files were removed or replaced while it was served; restart the server"
        ) from None
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise NotInstalled(
            f"{what} needs {error.name}, which is not installed here; install it and restart the server"
        ) from None
    except InputError:
        raise
    except UserError as error:
        raise InputError(str(error)) from None
