"""The languages of `regard translate`: --from and --to choose the model, and input in another language is noticed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from regard.errors import UserError
from regard.escaping import escape

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.translation.detection import LanguageNotice


def add_languages(parser: argparse.ArgumentParser) -> None:
    """--from and --to."""
    parser.add_argument(
        "--from",
        dest="from_language",
        metavar="LANGUAGE",
        help="code of the language to translate from, such as de; with --to it chooses a model of `regard models`",
    )
    parser.add_argument(
        "--to", dest="to_language", metavar="LANGUAGE", help="code of the language to translate into, such as en"
    )


def add_direction(parser: argparse._ActionsContainer) -> None:
    """--from and --to of a verb whose models -m names."""
    for option, side, name in (("--from", "from", "from_language"), ("--to", "into", "to_language")):
        parser.add_argument(
            option,
            dest=name,
            metavar="LANGUAGE",
            help=f"with a model for several directions: code of the language to translate {side}",
        )


def given_direction(arguments: argparse.Namespace) -> dict[str, str | None]:
    """These options and their values."""
    return {"--from": arguments.from_language, "--to": arguments.to_language}


def choose_model(arguments: argparse.Namespace) -> None:
    """Put the model for --from and --to into the arguments; if -m names one, check that it fits."""
    source, target = arguments.from_language, arguments.to_language
    if source is None and target is None:
        return
    from regard.bundle import find_bundle, read_bundle
    from regard.catalogue import find_model
    from regard.translation.directions import fitting_directions

    if not arguments.model:
        arguments.model = [str(find_model(source, target).folder)]
        return
    for name in arguments.model:
        bundle = read_bundle(find_bundle(name))
        if bundle.task != "translate":
            raise UserError(f"-m {name}: must be a model for the task translate, but is one for the task {bundle.task}")
        given = {"--from": source, "--to": target}
        if not fitting_directions(bundle.pairs, source, target):
            sides = {"--from": (source, None), "--to": (None, target)}
            wrong = [option for option in given if not fitting_directions(bundle.pairs, *sides[option])]
            options = " ".join(f"{option} {given[option]}" for option in wrong[:1] or given)
            raise UserError(
                f"{options}: -m {name} translates {_directions(bundle)}; leave out -m to choose a model by its languages, or "
                f"leave out {' or '.join(wrong[:1] or given)}"
            )


def _directions(bundle: Bundle) -> str:
    return bundle.languages if bundle.directions else f"from {bundle.source} to {bundle.target}"


class InputLanguage:
    """Prints one line, once per run, if the input is not in the model's language."""

    def __init__(self) -> None:
        self._notice: LanguageNotice | None = None

    def watch(self, bundle: Bundle, blocks: Iterable[list[str]]) -> Iterator[list[str]]:
        """Pass blocks of input lines on, having looked at each."""
        for block in blocks:
            self.look(bundle, block)
            yield block

    def look(self, bundle: Bundle, lines: list[str]) -> None:
        """Look at some lines of the input before they are translated."""
        from regard.catalogue import named_pairs
        from regard.translation.detection import LanguageNotice

        self._notice = self._notice or LanguageNotice(bundle.source, bundle.target, named_pairs)
        if said := self._notice.look(lines):
            print(f"regard: {escape(said)}", file=sys.stderr)
