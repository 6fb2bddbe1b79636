"""Command lines to arguments: what argparse leaves out, such as the nearest verb or option for a mistyped one."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are a line that names the help of its own verb. `verbs` are the parsers of the verbs."""

    verbs: Mapping[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")

    def add_verbs(self) -> Any:
        """Where verbs are added."""
        # Not required by argparse, whose message for a missing verb names no verb.
        action = self.add_subparsers(title="verbs", dest="verb", metavar="VERB", parser_class=Parser)
        self.verbs = action.choices
        return action

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments of a command line, after a check of its verb and its options."""
        words = list(words)
        if words[:1] == ["help"]:
            words = [*words[1:2], "--help"]
        _check_verb(self, words)
        if not words or words[0].startswith("-"):
            return self.parse_args(words)
        parser = self.verbs[words[0]]
        _check_options(words[0], self.verbs, words[1:])
        arguments, unknown = self.parse_known_args(words)
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return arguments


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant.

    >>> nearest("trian", ["train", "translate"]), nearest("x", ["train"])
    ('train', None)
    """
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)


def _check_verb(parser: Parser, words: Sequence[str]) -> None:
    if not words:
        parser.error("a verb is required, such as train or translate")
    word = words[0]
    if word.startswith("-"):
        if not _is_option(parser, word):
            parser.error(f"{word.partition('=')[0]} must come after a verb: regard VERB {word.partition('=')[0]} ...")
        return
    if word in parser.verbs:
        return
    if near := nearest(word.lower(), parser.verbs):
        parser.error(f"there is no verb {word!r}; did you mean {near}?")
    if word.endswith(".toml"):
        parser.error(f"there is no verb {word!r}; to train from a recipe: regard train {word}")
    if " " in word or Path(word).is_file():
        quoted = f'"{word}"' if " " in word else word
        parser.error(f"there is no verb {word!r}; to translate: regard translate {quoted}")
    parser.error(f"there is no verb {word!r}; the verbs are {', '.join(parser.verbs)}")


def _check_options(verb: str, verbs: Mapping[str, argparse.ArgumentParser], words: Sequence[str]) -> None:
    """Refuse an unknown option, before argparse complains of an argument that is missing because its name was mistyped."""
    parser = verbs[verb]
    for word in words:
        if word == "--":
            return
        # As in argparse, words with spaces are text.
        if not word.startswith("--") or " " in word or _is_option(parser, word):
            continue
        name = word.partition("=")[0]
        if near := nearest(name, _options(parser)):
            parser.error(f"{verb} has no option {name}; did you mean {near}?")
        others = [other for other, one in verbs.items() if name in _options(one)]
        parser.error(f"{verb} has no option {name}" + (f" (an option of {', '.join(others)})" if others else ""))


def _is_option(parser: argparse.ArgumentParser, word: str) -> bool:
    """Whether argparse knows the option; it takes unambiguous abbreviations, and refuses the others itself."""
    name = word.partition("=")[0]
    return any(option.startswith(name) for option in _options(parser))


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return list(parser._option_string_actions)
