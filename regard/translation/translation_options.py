"""How to translate text: the options of the search, and those of the text side around it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.generate.options import SearchOptions, refuse_unknown
from regard.translation.glossary import Glossary

if TYPE_CHECKING:
    from regard.bundle import Bundle


@dataclass(frozen=True)
class TranslationOptions:
    """The search, and what is done to the text before and after it."""

    search: SearchOptions = field(default_factory=SearchOptions)
    # Leaves a line as it is if it is in another script or its translation is plainly nonsense; restores lost numbers and writes
    # them as the target language does; translates text in capitals in sentence case.
    guard: bool = False
    languages: tuple[str, str] = ("", "")  # source and target: how each writes numbers
    words: bool = False  # return the words of translations with their log-probabilities
    alignment: bool = False  # return which source word each word comes from; implies `words`
    glossary: Glossary | None = None  # what source terms must be called in the translation
    keep: tuple[str, ...] = ()  # text that is not translated
    mbr: str = ""  # bleu or chrf: minimum Bayes risk reranking of the beam with this metric

    def __post_init__(self) -> None:
        if self.mbr not in ("", "bleu", "chrf"):
            raise UserError(f"mbr must be bleu or chrf, but is {self.mbr!r}")
        if self.mbr and self.search.beam < 3:
            what = "at least 3 samples" if self.search.sample else "the translations of a beam of at least 3"
            raise UserError(f"mbr chooses among {what}, but beam is {self.search.beam}; use a wider beam")
        if not all(term.strip() for term in self.keep):
            raise UserError(f"keep must be words, none of them empty, but is {list(self.keep)!r}")
        object.__setattr__(self, "keep", tuple(term.strip() for term in self.keep))

    @classmethod
    def of(cls, bundle: Bundle) -> TranslationOptions:
        """A model's own options."""
        guard = bool(bundle.decode.guard)
        return cls(SearchOptions.of(bundle), guard=guard, languages=(bundle.source, bundle.target))

    @property
    def engine_search(self) -> SearchOptions:
        """The engine's search options; reranking needs the whole beam."""
        return replace(self.search, nbest=self.search.beam) if self.mbr else self.search

    def changed(
        self, beam: int | None = None, alpha: float | None = None, nbest: int | None = None, **more: Any
    ) -> TranslationOptions:
        """These options with some changed, search options among them by name; `SearchOptions.changed` says how wide the beam
        becomes. The languages are the model's."""
        own = [option.name for option in fields(self) if option.name not in ("search", "languages")]
        refuse_unknown(more, [*SearchOptions.names(), *own])
        search = self.search.changed(
            beam, alpha, nbest, **{name: value for name, value in more.items() if name not in own}
        )
        return replace(self, search=search, **{name: value for name, value in more.items() if name in own})
