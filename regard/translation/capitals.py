"""Text wholly in capitals, such as warnings and headlines. Models have read little of it and know few of its words in capitals, so
with `decode.guard` a model is shown the text in sentence case, and the translation is put into capitals.

How a word is written otherwise, the vocabulary knows: "STAFF" takes three pieces and "staff" one, but "NATO" is a piece of its own;
in German "HUND" is "Hund", and "STRASSE" is "Straße"; in French "DEFENSE" is "défense".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from regard.data.tokenizer import Tokenizer
from regard.translation.glossary import with_capital
from regard.translation.languages import first_subtag
from regard.translation.terms import Span, overlap_with

_MAYBE = re.compile(r"[^\W\d_a-zß-öø-ÿ]{2}")  # two letters, neither of them a Latin lower-case one
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:['’][^\W\d_]+)*(?!\w)")  # without digits
_SENTENCE_END = re.compile(r"[.!?…][\"'”’“»)\]]*\s")
_VOWEL = re.compile(r"[^\Wb-df-hj-np-tv-xz]", re.IGNORECASE)  # also every letter of other alphabets
_LEAST = 2  # words in capitals, so that a lone name or abbreviation stays as it is
_MOST_SS = 2  # in a word: each may be a ß
_NO_SS = re.compile("(?:ei|au|äu|eu|ie)ss")  # where German writes ß inside a word
_ACCENTED = {
    "a": "àâ",
    "c": "ç",
    "e": "éèêë",
    "i": "îï",
    "o": "ô",
    "u": "ùûü",
}  # in French, where capitals often lack them
_LONGEST = 8  # letters of a word that may have an accent
_MOST_ACCENTS = 2  # in a word that has none
_DOTTED = {"tr", "az"}  # languages with two letters i, whose case Python does not know


def may_be_in_capitals(text: str) -> bool:
    """Rules out most text cheaply."""
    return _MAYBE.search(text) is not None


def to_sentence_case(
    text: str, kept: Sequence[Span], tokenizer: Tokenizer, languages: tuple[str, str] = ("", "")
) -> str | None:
    """A text in capitals as it would be written otherwise, for a model to translate; None for other text. `kept` are places that
    are not translated; they do not count. Abbreviations and words with digits stay in capitals."""
    if _DOTTED & {first_subtag(code) for code in languages}:
        return None
    is_kept = overlap_with(kept)
    if any(letter.islower() and not is_kept((place, place + 1)) for place, letter in enumerate(text)):
        return None
    places = [word.span() for word in _WORD.finditer(text) if not is_kept(word.span())]
    written = _write({text[slice(*place)] for place in places}, tokenizer, languages[0])
    words = [word for place in places if len(word := text[slice(*place)]) > 1]
    changed = sum(written[word] != word for word in words)
    if changed < _LEAST or 2 * changed < len(words):
        return None
    made, done, is_first = "", 0, True
    for begin, end in places:
        between, word = text[done:begin], written[text[begin:end]]
        is_first = is_first or _SENTENCE_END.search(between) is not None
        made += between + (with_capital(word) if is_first else word)
        done, is_first = end, False
    return made + text[done:]


def to_capitals(text: str, kept: Sequence[Span]) -> str:
    """The text in capitals, but for these places, which do not overlap. A ß becomes SS.

    >>> to_capitals("Große Straße, siehe www.example.org", [(20, 35)])
    'GROSSE STRASSE, SIEHE www.example.org'
    """
    made, done = "", 0
    for begin, end in kept:
        made += text[done:begin].upper() + text[begin:end]
        done = end
    return made + text[done:].upper()


def _write(words: set[str], tokenizer: Tokenizer, language: str) -> dict[str, str]:
    """How each of these words in capitals is written in a sentence."""
    forms = {word: list(dict.fromkeys(_forms(word, language))) for word in sorted(words)}
    listed = [form for some in forms.values() for form in some]
    ids = dict(zip(listed, tokenizer.encode_batch(listed), strict=True))
    has_nouns = first_subtag(language) == "de"  # with capitals
    return {word: _best(word, some, ids, tokenizer.unk_id, has_nouns) for word, some in forms.items()}


def _forms(word: str, language: str) -> Iterator[str]:
    """The word itself, in lower case and with a first capital; all of them are this word in capitals."""
    yield word
    small = word.lower()
    parts = small.split("ss") if first_subtag(language) == "de" else [small]
    if not 2 <= len(parts) <= _MOST_SS + 1:
        parts = [small]
    for letters in product(("ss", "ß"), repeat=len(parts) - 1):
        form = parts[0] + "".join(letter + part for letter, part in zip(letters, parts[1:], strict=True))
        yield from (one for one in (form, with_capital(form)) if one.upper() == word)
    if first_subtag(language) == "fr" and small.isascii():
        yield from _accented(small)


def _accented(word: str) -> Iterator[str]:
    """A French word without accents with up to two of them.

    >>> [form for form in _accented("ecole") if form[1:] == "cole"]
    ['école', 'ècole', 'êcole', 'ëcole']
    """
    places = [place for place, letter in enumerate(word) if letter in _ACCENTED][:_LONGEST]
    for count in range(1, _MOST_ACCENTS + 1):
        for chosen in combinations(places, count):
            for letters in product(*(_ACCENTED[word[place]] for place in chosen)):
                form = list(word)
                for place, letter in zip(chosen, letters, strict=True):
                    form[place] = letter
                yield "".join(form)


def _best(word: str, forms: Sequence[str], ids: dict[str, list[int]], unknown: int, has_nouns: bool) -> str:
    """The form that the vocabulary knows best: of the fewest pieces; of these in lower case, or else the commonest, which comes
    first in the vocabulary. What it does not know as a piece, and has no vowel, is an abbreviation."""

    def rank(form: str) -> tuple[bool, int, bool, bool, bool, int]:
        is_rarer = not form.islower() and (len(ids[form]) > 1 or not (has_nouns or form == word))
        is_accented = form.upper() != word
        no_ss = _NO_SS.search(form) is not None
        return unknown in ids[form], len(ids[form]), is_accented, no_ss, is_rarer, sum(ids[form])

    best = min(forms, key=rank)
    return best if len(ids[best]) == 1 or _VOWEL.search(word) else word
