"""From the fields of a request to what is wanted of the search."""

from __future__ import annotations

from regard.serve.search import RANGES, SearchRequest
from regard.serve.web.schemas import SearchFields, TermFields
from regard.serve.web.status import HttpRefused
from regard.translation.glossary import read_entry

_OPTIONS = (*RANGES, "sample", "mbr")


def search_of(fields: SearchFields) -> SearchRequest:
    changes = {name: value for name in _OPTIONS if (value := getattr(fields, name)) is not None}
    return SearchRequest(
        changes, _glossary(fields.glossary), terms_of(fields.keep), fields.prefix or "", terms_of(fields.phrases)
    )


def terms_alone(fields: TermFields) -> SearchRequest:
    """For documents."""
    return SearchRequest({}, _glossary(fields.glossary), terms_of(fields.keep))


def terms_of(given: str | list[str] | None) -> tuple[str, ...]:
    """Words from a list, or from the lines of a text."""
    if isinstance(given, str):
        return tuple(line.strip() for line in given.splitlines() if line.strip())
    return tuple(given or ())


def _glossary(given: dict[str, str | list[str]] | str | None) -> tuple[tuple[str, str], ...]:
    if isinstance(given, str):
        return tuple(_entries(given))
    pairs = [
        (term, way)
        for term, ways in (given or {}).items()
        for way in ([ways] if isinstance(ways, str) else ways or [""])
    ]
    return tuple(pairs)


def _entries(text: str) -> list[tuple[str, str]]:
    """As a file of a glossary is read."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = read_entry(line)
        except ValueError:
            raise HttpRefused(
                400, f"glossary, line {number} must be a term, a tab and what it must be called"
            ) from None
        if entry is not None:
            entries.append(entry)
    return entries
