"""From the search fields of an HTTP request to a `SearchRequest`."""

from __future__ import annotations

from regard.serve.search import RANGES, SearchRequest
from regard.serve.web.schemas import SearchFields, TermFields
from regard.serve.web.status import HttpRefused
from regard.translation.glossary import read_entry

_OPTIONS = (*RANGES, "sample", "mbr")


def search_of(fields: SearchFields) -> SearchRequest:
    """All search options of a request; an option that was not sent keeps the model's own value."""
    changes = {name: value for name in _OPTIONS if (value := getattr(fields, name)) is not None}
    return SearchRequest(
        changes, _glossary(fields.glossary), terms_of(fields.keep), fields.prefix or "", terms_of(fields.phrases)
    )


def terms_only(fields: TermFields) -> SearchRequest:
    """The glossary and the kept words only, for documents."""
    return SearchRequest({}, _glossary(fields.glossary), terms_of(fields.keep))


def terms_of(given: str | list[str] | None) -> tuple[str, ...]:
    """Words from a list, or from the lines of a string."""
    if isinstance(given, str):
        return tuple(line.strip() for line in given.splitlines() if line.strip())
    return tuple(given or ())


def _glossary(given: dict[str, str | list[str]] | str | None) -> tuple[tuple[str, str], ...]:
    if isinstance(given, str):
        return tuple(_entries(given))
    pairs = [
        (term, translation)
        for term, translations in (given or {}).items()
        for translation in ([translations] if isinstance(translations, str) else translations or [""])
    ]
    return tuple(pairs)


def _entries(text: str) -> list[tuple[str, str]]:
    """The entries of a glossary in the format of a glossary file."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = read_entry(line)
        except ValueError:
            raise HttpRefused(400, f"glossary, line {number} must be a term, a tab and its translation") from None
        if entry is not None:
            entries.append(entry)
    return entries
