"""HTTP status codes: the one place where errors are mapped to them."""

from __future__ import annotations

from regard.errors import InputError, InputTooLarge, RegardError
from regard.serve.refusal import Busy, Forbidden, NotInstalled, Refused, Unavailable

# Errors whose message goes to the client; any other is an internal error. The most specific class comes first.
STATUS: dict[type[RegardError], int] = {
    InputTooLarge: 413,
    InputError: 400,
    Busy: 429,
    Forbidden: 403,
    Unavailable: 503,
    NotInstalled: 501,
}


class HttpRefused(Refused):
    """A refusal that exists only in HTTP, such as an unknown address or a missing part of a form."""

    def __init__(
        self, status: int, message: str, retry: int | None = None, param: str | None = None, code: str | None = None
    ) -> None:
        """`param` and `code` are for OpenAI's clients: the field, and a name of the reason."""
        super().__init__(message, retry)
        self.status, self.param, self.code = status, param, code


REFUSALS = (InputError, Refused)  # answered with their own message


def as_http(error: Exception) -> HttpRefused:
    """An error as a refusal with its status code."""
    if isinstance(error, HttpRefused):
        return error
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    return HttpRefused(status, str(error), error.retry if isinstance(error, Refused) else None)
