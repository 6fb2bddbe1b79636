"""Why a request is not answered. A message names the field and the rule, never what came: it may be somebody's text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from regard.bundle import Gone
from regard.errors import RegardError, UserError


class Refused(RegardError):
    """A request that gets no translation; `status` is HTTP's, `retry` the seconds after which it may come again."""

    def __init__(self, status: int, message: str, retry: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry = status, retry


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Around `what` a model computes: torch may be loaded for it and the weights read, long after the start. Other complaints are
    the client's business; they speak of numbers of tokens and never quote a text."""
    try:
        yield
    except Gone:  # it names the folder
        raise Refused(
            503, "the model's files were removed or replaced while it was served; start the server again"
        ) from None
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise Refused(
            501, f"{what} takes {error.name}, which is not installed here; install it and start the server again"
        ) from None
    except UserError as error:
        raise Refused(400, str(error)) from None
