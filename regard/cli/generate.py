"""`regard generate`: text that follows prompts, by a language model, and its answers in a conversation."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import (
    MODEL_OF_TEXT,
    add_adapter,
    add_engine,
    checked_batch,
    find_models,
    load_model,
    naming_options,
    verb,
)
from regard.errors import InputError, UserError
from regard.escaping import escape, escape_json

if TYPE_CHECKING:
    from regard.api import Model
    from regard.writing.options import WritingOptions
    from regard.writing.writer import Written

_BETWEEN = "\n---\n"  # printed between the texts of several prompts or samples

# Options of `writing_options`: (option, type, metavar, help).
_SAMPLING: tuple[tuple[str, Any, str, str], ...] = (
    ("--temperature", float, "T", "below 1 favours likely tokens; 0 takes the likeliest each time (default: 0.8)"),
    ("--top-k", int, "K", "only from the K likeliest tokens"),
    ("--top-p", float, "P", "only from the likeliest tokens that make up probability P (default: 0.95)"),
    ("--min-p", float, "P", "only from tokens at least P times as likely as the likeliest"),
    ("--seed", int, "S", "random seed, for the same text again (default: another each time; --json shows it)"),
)
_SEARCH: tuple[tuple[str, Any, str, str], ...] = (
    ("--beam", int, "N", "beam search with N hypotheses instead of samples"),
    ("--alpha", float, "A", "with --beam: length penalty ((5 + length) / 6)^A (default: 0.6)"),
    ("--repetition-penalty", float, "R", "divides the logits of tokens that the text already has; 1 disables"),
    ("--no-repeat", int, "N", "n-gram size that may not repeat; 0 disables"),
    ("--max-repeat", int, "N", "times that a run of tokens may repeat in a row; 0 disables"),
)
# As Python names them: --max-tokens is max_tokens.
_NAMES = ("max_tokens", "stop", "prefix", *(option[2:].replace("-", "_") for option, *_ in (*_SAMPLING, *_SEARCH)))


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "generate",
        run,
        "continue text with a language model",
        "Continue prompts with a language model. A prompt is an argument, a file or standard input; without any, the model begins "
        "a text. One continuation of one prompt is printed while it is written. With --chat a prompt is a message that the model "
        "answers; without any, on a terminal, you talk to it.",
    )
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="texts to continue (default: -i or standard input)"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help=MODEL_OF_TEXT)
    add_adapter(parser)
    add_engine(parser)
    parser.add_argument(
        "-i", "--input", type=Path, metavar="FILE", help="a file whose text is the prompt, without its last line break"
    )
    parser.add_argument("--lines", action="store_true", help="each line of the file or of standard input is a prompt")
    parser.add_argument(
        "--chat", action="store_true", help="answer each prompt as a message, by the model's own chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="with --chat: what the model is told before the conversation")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="continuations of each prompt (default: 1)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest continuation (default: 200)")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; repeatable")
    parser.add_argument("--prefix", metavar="TEXT", help="every continuation begins with this")
    parser.add_argument(
        "--phrase",
        action="append",
        dest="phrases",
        metavar="TEXT",
        help="must appear in every continuation; repeatable",
    )
    parser.add_argument("--no-prompt", action="store_true", help="print what follows the prompt, without the prompt")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--log-probs", action="store_true", help="with --json: the log-probability of each token")
    for title, options in (("samples", _SAMPLING), ("search and repetition", _SEARCH)):
        group = parser.add_argument_group(title)
        for option, type_, metavar, help_ in options:
            group.add_argument(option, type=type_, metavar=metavar, help=help_)


def run(arguments: argparse.Namespace) -> None:
    """Continue everything."""
    if arguments.model is None:
        raise UserError("generate needs -m MODEL, a language model: regard train makes one, regard import reads one")
    if arguments.log_probs and not arguments.json:
        raise UserError("--log-probs needs JSON output; add --json")
    if arguments.system is not None and not arguments.chat:
        raise UserError("--system begins a conversation; add --chat")
    if arguments.chat and arguments.no_prompt:
        raise UserError("--chat prints the answers alone; leave out --no-prompt")
    find_models(arguments)  # before anything is read
    checked_batch(arguments)
    with naming_options(_NAMES):
        options = _options(arguments)
    talks = arguments.chat and _is_terminal() and not (arguments.prompts or arguments.input)
    if talks and (arguments.json or arguments.n != 1):
        raise UserError("a conversation on a terminal takes one answer at a time; leave out --json and -n")
    prompts = [] if talks else _prompts(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # UTF-8, whatever the console uses
        sys.stdout.reconfigure(encoding="utf-8")
    model = load_model(arguments, task="generate")
    with naming_options(_NAMES):
        if talks:
            _talk(model, options, arguments)
            return
        if len(prompts) == 1 and arguments.n == 1 and not arguments.json:
            _follow(model, prompts[0], options, arguments)
            return
        _write_all(model, prompts, options, arguments)


def _options(arguments: argparse.Namespace) -> WritingOptions:
    from regard.writing.options import writing_options

    given = {name: value for name in ("n", "phrases", *_NAMES) if (value := getattr(arguments, name)) is not None}
    return writing_options(token_log_probs=arguments.log_probs, **given)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    """The texts to continue."""
    if arguments.prompts and (arguments.input or arguments.lines):
        raise UserError(
            f"generate takes PROMPT or {'-i FILE' if arguments.input else '--lines'}, but got both; leave one out"
        )
    if arguments.prompts:
        return list(arguments.prompts)
    from regard.data.corpus import check_file, read_lines
    from regard.translation.lines import read_available, standard_input

    if arguments.input:
        check_file(arguments.input)
        lines = list(read_lines(arguments.input))
    elif _is_terminal():
        if arguments.lines:
            raise UserError("--lines needs -i FILE or standard input")
        return [""]  # the model begins a text
    else:
        lines = [line for block in read_available(standard_input(), 1024) for line in block]
    return lines if arguments.lines else ["\n".join(lines)]


def _is_terminal() -> bool:
    """Whether standard input is a terminal, or closed."""
    return sys.stdin is None or sys.stdin.isatty()


def _conversation(prompt: str, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """A conversation that begins with this message."""
    told = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return [*told, {"role": "user", "content": prompt}]


def _talk(model: Model, options: WritingOptions, arguments: argparse.Namespace) -> None:
    """A conversation on the terminal: Ctrl-C ends an answer, Ctrl-D the conversation."""
    with suppress(InputError):  # a template may refuse this message; a model without a template is refused at once
        model.writer.chat_ids("Hello!")
    sys.stderr.write("Write a message; Ctrl-C ends an answer, Ctrl-D the conversation\n")
    told, messages = _conversation("", arguments)[:-1], list[dict[str, str]]()  # questions and answers in turn
    while True:
        try:
            said = input("> ")
        except (EOFError, RuntimeError):  # input() raises the latter where standard input is closed
            _print("\n")
            return
        if not said.strip():
            continue
        answer, history = "", messages
        while True:
            asked = [*told, *history, {"role": "user", "content": said}]
            try:
                for text in _printed(model.writer.follow_answer(asked, options)):
                    answer = text
            except KeyboardInterrupt:
                pass
            except InputError as error:  # too long, or the template refuses it
                if history:
                    history = history[2:]  # without its oldest question and answer
                    continue
                sys.stderr.write(f"{error}; this message is left out. Ctrl-D ends the conversation\n")
                break
            _print("\n")
            messages = [*history, {"role": "user", "content": said}, {"role": "assistant", "content": answer}]
            break


def _follow(model: Model, prompt: str, options: WritingOptions, arguments: argparse.Namespace) -> None:
    """Write the text while it grows."""
    if arguments.chat:
        texts = model.writer.follow_answer(_conversation(prompt, arguments), options)
    else:
        texts = model.writer.follow(prompt, options)
    opening = "" if arguments.no_prompt or arguments.chat else prompt
    for _ in _printed(texts, opening):
        pass
    _print("\n")


def _printed(texts: Iterator[str], opening: str = "") -> Iterator[str]:
    """Print a text as it grows."""
    shown = ""
    for text in texts:
        _print(opening + text[len(shown) :])
        shown, opening = text, ""
        yield text


def _write_all(model: Model, prompts: Sequence[str], options: WritingOptions, arguments: argparse.Namespace) -> None:
    from regard.progress import progress_if

    with progress_if(len(prompts) > 1, "writing", len(prompts), "prompts") as done:

        def report(numbers: Sequence[int]) -> None:
            if done:
                done(len(numbers))

        if arguments.chat:
            written = model.writer.answer([_conversation(one, arguments) for one in prompts], options, report)
        else:
            written = model.writer.write(prompts, options, report)
    if arguments.json:
        seed = options.search.seed if options.search.sample else None
        document = [_document(one, seed, arguments.log_probs) for one in written]
        sys.stdout.write(escape_json(json.dumps(document, ensure_ascii=False, indent=2)) + "\n")
        return
    texts = [
        f"{'' if arguments.no_prompt or arguments.chat else one.prompt}{continuation.text}\n"
        for one in written
        for continuation in one.continuations
    ]
    _print(_BETWEEN.join(texts))


def _document(written: Written, seed: int | None, log_probs: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"prompt": written.prompt, "prompt_tokens": written.num_prompt_tokens}
    if seed is not None:
        document["seed"] = seed
    document["continuations"] = [asdict(one) for one in written.continuations]
    for one in document["continuations"] if not log_probs else ():
        del one["tokens"]
    return document


def _print(text: str) -> None:
    """Models may write anything: control characters are escaped."""
    sys.stdout.write(escape(text, keep="\n\t"))
    sys.stdout.flush()
