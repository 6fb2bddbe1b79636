"""Which direction of a translation model is meant: by its languages, else by the language of the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from regard.errors import UserError
from regard.translation.detection import match_detected, sample_of
from regard.translation.languages import match_code, rank_languages

Direction = tuple[str, str]  # codes of source and target


def choose_direction(
    directions: Sequence[Direction],
    source: str | None,
    target: str | None,
    sample: Iterable[str] = (),
    *,
    is_all: bool = False,
) -> Direction:
    """The direction between these languages, in the codes that people type (`EN`, `pt_BR`); None stands for any. If several
    directions fit, the one whose source language the sample is in. `is_all`: the sample is all that is to be translated; a blank
    one, which every direction leaves as it is, takes the first.

    >>> choose_direction([("en", "fr"), ("fr", "en")], None, "FR")
    ('en', 'fr')
    """
    fitting = fitting_directions(directions, source, target)
    if not fitting:
        wanted = " ".join(f"{word} {code}" for word, code in (("from", source), ("to", target)) if code is not None)
        raise UserError(f"{wanted}: there is no such direction; this model translates {shown(directions)}")
    if len(fitting) == 1:
        return fitting[0]
    if is_all:
        texts = iter(sample)
        first = next((text for text in texts if text.strip()), None)
        if first is None:
            return fitting[0]
        sample = chain([first], texts)
    found = _likeliest(sample_of(sample), [one for one, _ in fitting])
    of_language = [pair for pair in fitting if pair[0] == found] if found else []
    if len(of_language) == 1:
        return of_language[0]
    if len({to for _, to in fitting}) == 1:
        return fitting[0]  # the source language changes nothing that the model reads
    raise UserError(
        f"the model translates {shown(of_language or fitting)}, and the text does not show which is meant: name the target "
        f'language with --to or, in Python, with model.toward("{fitting[0][1]}")'
    )


def fitting_directions(directions: Sequence[Direction], source: str | None, target: str | None) -> list[Direction]:
    """The directions between these languages, in the codes that people type (`EN`, `pt_BR`); None stands for any language."""
    sources, targets = ({pair[side] for pair in directions} for side in (0, 1))
    from_ = None if source is None else match_code(source, sources)
    to = None if target is None else match_code(target, targets)
    return [pair for pair in directions if (source is None or pair[0] == from_) and (target is None or pair[1] == to)]


def shown(directions: Iterable[Direction]) -> str:
    """Directions for people.

    >>> shown([("en", "fr"), ("fr", "en")])
    'en → fr, fr → en'
    """
    return ", ".join(f"{source} → {target}" for source, target in directions)


def _likeliest(text: str, codes: Sequence[str]) -> str | None:
    """Which of these languages a text is in; None if that cannot be told."""
    if not any(map(str.isalpha, text)):
        return None
    try:
        ranking = rank_languages(text)
    except UserError:  # the package that classifies is not installed
        return None
    return next((own for code, _ in ranking if (own := match_detected(code, codes)) is not None), None)
