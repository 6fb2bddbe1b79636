"""Which language a text is in, how sure that is, and whether it is another than a model reads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from regard.errors import UserError
from regard.translation.languages import first_subtag, language_name, match_code, rank_languages

_MOST_CHARACTERS = 5_000  # of a text are looked at
_WINDOW = 80  # characters of a part that is classified by itself
_MOST_WINDOWS = 8
# The classifier's probabilities are far too sure: it treats overlapping letter sequences as independent. Its log-probabilities
# are divided by _SCALE * bytes ** _GROWTH, fitted on interface texts in 95 languages (benchmarks/detection.py).
_SCALE, _GROWTH = 1.4, 0.3
_SURE = 90.0  # per cent, from which a text counts as being in another language
_FEWEST_LETTERS = 20  # of a text that counts as being in another language
# Languages that people file under one code, or that the classifier cannot tell apart.
_ALIKE = (
    "no nb nn da",
    "hr bs sr sh",
    "id ms",
    "zh yue wuu",
    "ar ary arz",
    "fa prs",
    "he hbo iw",
    "el grc",
    "uz uzs",
    "pt gl",
)
# Frequent words that few other languages have. Loading the classifier takes longer than translating a sentence, and a text with
# enough of these does not need it.
_FREQUENT = {
    "en": frozenset(
        "the and to you that it with this what where when are have not she they would my your from there his their which will been "
        "has can could should does did how who why but about if all one out up just into than then our these don't it's i'm".split()
    ),
    "de": frozenset(
        "der die das und ist nicht ich ein eine einen einem einer zu den dem des mit sie auf wir für von sich auch wie haben hat "
        "wird im aus bei oder aber wenn kann noch nach über mein dein sein bin sind wurde werden nur vom zum zur ihr".split()
    ),
    "fr": frozenset(
        "le la les des une du et est dans que qui pour pas sur au aux avec ce cette ces il elle nous vous ils elles je ne se sont "
        "mais ou où plus par leur leurs mon ma mes ton ta tes son sa ses été être avoir fait comme tout tous très bien".split()
    ),
}
_FREQUENT_SHARE = 0.15  # of the words of a text; running text has about twice as many
_GROUP = {code: group for group in _ALIKE for code in group.split()}


class Detected(NamedTuple):
    """The likeliest language of a text, and how sure that is, in per cent."""

    language: str  # its code
    confidence: float


def detect(text: str) -> Detected | None:
    """The likeliest language of a text; None for a text without letters. Of text that mixes languages, or that is in none that the
    classifier knows, the parts disagree, which lowers the confidence."""
    if not re.search(r"[^\W\d_]", text):
        return None
    text = text[:_MOST_CHARACTERS]
    whole = _probabilities(text)
    code = max(whole, key=whole.__getitem__)
    parts = [_probabilities(part).get(code, 0.0) for part in _windows(text)]
    confidence = min(whole[code], sum(parts) / len(parts)) if parts else whole[code]
    return Detected(code, min(99.9, math.floor(1000 * confidence) / 10))  # never certain


def find_other_language(text: str, source: str, target: str) -> Detected | None:
    """The language of a text if it clearly is not `source`, the one that a model reads; else None.

    A classifier that does not know `source` is believed only where it finds `target`, as in a text for the other direction.
    """
    text = text[:_MOST_CHARACTERS]
    wanted, other = first_subtag(source), first_subtag(target)
    if sum(map(str.isalpha, text)) < _FEWEST_LETTERS or _is_plainly(text, wanted):
        return None
    try:
        found = detect(text)
    except UserError:  # the package that classifies is not installed
        return None
    if found is None or found.confidence < _SURE or found.language == "zxx":  # zxx: no language at all
        return None
    if found.language in alike(wanted) or not (_is_known(wanted) or found.language in alike(other)):
        return None
    return found


def _is_plainly(text: str, language: str) -> bool:
    """Whether the frequent words of a text show that it is in this language; False if they do not."""
    words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", text.lower())
    frequent = [word for word in words if word in _FREQUENT.get(language, ())]
    return len(set(frequent)) >= 2 and len(frequent) >= _FREQUENT_SHARE * len(words)


class LanguageNotice:
    """Says once that the input is not in the language that a model reads."""

    def __init__(self, source: str, target: str, others: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """`others` finds the languages of models that --from and --to can choose."""
        self._source, self._target, self._others = source, target, others
        self._is_said = False

    def look(self, lines: Sequence[str]) -> str:
        """What to say about some lines of input; empty if there is nothing to say, or it was said."""
        if self._is_said:
            return ""
        found = find_other_language(sample_of(lines), self._source, self._target)
        if found is None:
            return ""
        self._is_said = True
        fitting = [pair for pair in self._others() if first_subtag(pair[0]) in alike(found.language)]
        if fitting:
            own = match_detected(found.language, [source for source, _ in fitting])

            def rank(pair: tuple[str, str]) -> tuple[bool, bool, bool]:
                """The language that was found, rather than one like it; then the target that was asked for."""
                return pair[0] != own, first_subtag(pair[0]) != found.language, pair[1] != self._target

            source, target = min(fitting, key=rank)
            remedy = f"for {language_name(source)} to {language_name(target)} use --from {source} --to {target}"
        else:
            remedy = "`regard models` lists the models that there are"
        return (
            f"the input looks like {language_name(found.language)} ({int(found.confidence)}% sure), but the model translates from "
            f"{language_name(self._source)}; {remedy}"
        )


def alike(code: str) -> frozenset[str]:
    """The codes of languages that a detected language with this code may be, itself among them.

    >>> sorted(alike("nb")), sorted(alike("de"))
    (['da', 'nb', 'nn', 'no'], ['de'])
    """
    return frozenset(_GROUP.get(code, code).split())


def match_detected(code: str, known: Iterable[str]) -> str | None:
    """The known code of the language that was detected: its own, else the only one of those that it may be. Of several those count
    that the classifier has no answer for.

    >>> match_detected("no", ["da", "no"]), match_detected("no", ["da", "nb-NO"]), match_detected("bs", ["hr", "sr"])
    ('no', 'nb-NO', None)
    """
    codes = list(known)
    if (own := match_code(code, codes)) is not None:
        return own
    others = [one for one in codes if first_subtag(one) in alike(code)]
    if len(others) > 1:
        others = [one for one in others if first_subtag(one) not in _answers()]
    return others[0] if len(others) == 1 else None


def sample_of(lines: Iterable[str]) -> str:
    """As many lines as detection looks at."""
    taken, size = [], 0
    for line in lines:
        taken.append(line[:_MOST_CHARACTERS])
        size += len(line) + 1
        if size >= _MOST_CHARACTERS:
            break
    return "\n".join(taken)[:_MOST_CHARACTERS]


@cache
def _answers() -> frozenset[str]:
    """What the classifier may answer."""
    return frozenset(code for code, _ in rank_languages(""))


def _is_known(code: str) -> bool:
    """Whether the classifier may find a language, or one like it."""
    return not alike(code).isdisjoint(_answers())


def _probabilities(text: str) -> Mapping[str, float]:
    ranking = rank_languages(text)
    temperature = _SCALE * max(1, len(text.encode("utf-8", "replace"))) ** _GROWTH
    best = ranking[0][1]
    weights = {code: math.exp((score - best) / temperature) for code, score in ranking}
    total = sum(weights.values())
    return {code: weight / total for code, weight in weights.items()}


def _windows(text: str) -> list[str]:
    """Parts of a text, cut between words and spread over all of it; none of a text too short to cut."""
    starts = range(0, len(text) - _WINDOW // 2, _WINDOW)
    if len(starts) < 2:
        return []
    step = max(1, math.ceil(len(starts) / _MOST_WINDOWS))
    parts = (_whole_words(text, start, start + _WINDOW) for start in starts[::step])
    return [part for part in parts if sum(map(str.isalpha, part)) > _WINDOW // 4]


def _whole_words(text: str, start: int, end: int) -> str:
    """text[start:end] without the words that were cut, if that leaves anything."""
    part = text[start:end]
    if start > 0 and not text[start - 1].isspace():
        part = part.partition(" ")[2] or part
    if end < len(text) and not text[end].isspace():
        part = part.rpartition(" ")[0] or part
    return part
