"""Errors as DeepL's clients expect them: the statuses of its routes, and the names of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regard.errors import InputError
from regard.serve.refusal import Forbidden, LanguageError
from regard.serve.web.schemas import DeepLError

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": DeepLError} for status in (400, 403, 404, 408, 413, 415, 422, 429, 500, 501, 503)
}


@contextmanager
def deepl_names() -> Iterator[None]:
    """Turn errors about a language or a key into ones with DeepL's names of the fields."""
    try:
        yield
    except LanguageError as error:
        raise InputError(f"{error.field}_lang {error.rule}") from None
    except Forbidden as error:
        raise Forbidden(str(error).replace("api_key", "auth_key", 1)) from None
