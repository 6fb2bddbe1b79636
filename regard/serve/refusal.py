"""Why a request is refused, apart from errors in the request itself (`InputError`). What HTTP makes of each is in
`web/status.py`. A message names the field and the rule and never quotes the request: it may be somebody's text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from regard.bundle import BundleGone
from regard.errors import InputError, RegardError, UserError


class Refused(RegardError):
    """A request that gets no answer; `retry` is the number of seconds after which it may come again."""

    def __init__(self, message: str, retry: int | None = None) -> None:
        super().__init__(message)
        self.retry = retry


class Busy(Refused):
    """Too much is waiting already, or a client has used up its rate."""


class Forbidden(Refused):
    """The API key is missing or unknown."""


class Unavailable(Refused):
    """The model cannot be used any more."""


class NotInstalled(Refused):
    """The request needs a package that this machine lacks."""


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Around `what` a model computes: torch may be imported and the weights read long after the start. Other user errors are
    the client's business; they speak of numbers of tokens and never quote a text."""
    try:
        yield
    except BundleGone:  # it names the folder
        raise Unavailable(
            "the model's files were removed or replaced while it was served; start the server again"
        ) from None
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise NotInstalled(
            f"{what} takes {error.name}, which is not installed here; install it and start the server again"
        ) from None
    except InputError:
        raise
    except UserError as error:
        raise InputError(str(error)) from None
