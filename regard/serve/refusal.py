"""Why a request is not answered. A message names the field and the rule, never what came: it may be somebody's text."""

from __future__ import annotations

from regard.errors import RegardError


class Refused(RegardError):
    """A request that gets no translation; `status` is HTTP's, `retry` the seconds after which it may come again."""

    def __init__(self, status: int, message: str, retry: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry = status, retry
