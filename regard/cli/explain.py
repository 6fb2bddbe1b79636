"""`regard explain`: how a model arrived at one translation, label, tag, token or vector, as a page, a figure or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import MODEL, add_search, naming_options, verb
from regard.cli.languages import add_direction
from regard.errors import UserError
from regard.escaping import escape, for_terminal, shorten

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.explain.encoder_explanation import EncoderExplanation
    from regard.explain.explanation import Explanation


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "explain",
        run,
        "show why: attention, candidates, and which words decided, as a page or a figure",
        "Show how a model translates one sentence, or what it says about a text: labels, tags, tokens for blanks, vectors. A page "
        "(.html) has the attention of every layer and head. Of a translation it has the likeliest tokens at each step, beam and "
        "saliency; of labels, tags and blanks their probabilities and which words decided; of two texts which words make their "
        "vectors similar. A figure (.svg, .png) shows attention in the style of the paper's figures 3 to 5.",
    )
    parser.add_argument(
        "text",
        nargs="?",
        metavar="TEXT",
        help='a sentence (default: "The animal didn\'t cross the street because it was too tired"); a tab stands between two texts',
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help=MODEL)
    add_direction(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="page.html, figure.svg, figure.png or data.json"
    )
    parser.add_argument(
        "--top",
        type=int,
        default=8,
        metavar="K",
        help="candidates shown at each step, or labels of a text (default: 8)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    translation = parser.add_argument_group("translations")
    translation.add_argument("--target", metavar="TEXT", help="explain this translation instead of the model's")
    translation.add_argument("--prefix", metavar="TEXT", help="forced prefix of the translation")
    translation.add_argument(
        "--force",
        action="append",
        default=[],
        metavar="N=WORD",
        help="force word N of the translation, counting from 1; repeatable",
    )
    add_search(translation)
    labels = parser.add_argument_group("labels, tags, blanks and vectors")
    labels.add_argument("--label", metavar="NAME", help="explain this label or tag instead of the likeliest")
    labels.add_argument("--token", metavar="TEXT", help="explain this token in the blank instead of the likeliest")
    labels.add_argument(
        "--at",
        type=int,
        metavar="N",
        help="the word or the blank to explain, counting from 1 (default: the first with a name)",
    )
    labels.add_argument("--window", type=int, metavar="N", help="the part of a long text, counting from 1 (default: 1)")
    figure = parser.add_argument_group("figures")
    figure.add_argument(
        "--attention",
        choices=("encoder", "decoder", "cross"),
        help="attention to draw (default: encoder, as in the paper)",
    )
    figure.add_argument(
        "--layer", type=int, metavar="N", help="counting from 1 (default: the last but one, as in the paper)"
    )
    figure.add_argument(
        "--head", type=int, action="append", metavar="N", help="counting from 1; repeatable (default: all)"
    )
    figure.add_argument("--word", metavar="WORD", help="draw only the attention of this word")
    figure.add_argument("--pieces", action="store_true", help="draw subword tokens instead of words")


def run(arguments: argparse.Namespace) -> None:
    """Print the translation or the answer, or with --json its explanation; write the page, figure or data that -o names."""
    from regard.bundle import find_bundle, load_bundle
    from regard.explain.encoder_explanation import TASKS_OF, EncoderExplanation, check_task
    from regard.explain.explanation import EXAMPLE
    from regard.explain.lines import lines, window_note
    from regard.explain.save import FIGURES, check_path

    named = {name: getattr(arguments, name) for name in ("attention", "layer", "head", "word", "pieces")}
    given = {f"--{name}": value for name, value in named.items() if value not in (None, False)}
    if arguments.output:
        check_path(arguments.output, given)
    elif not arguments.json:
        raise UserError("explain needs -o FILE (page.html, figure.svg, figure.png, data.json), or --json")
    elif given:
        raise UserError(f"{' and '.join(given)}: for figures only; add -o figure.svg, or leave out")
    force = _forced(arguments.force)
    bundle = load_bundle(find_bundle(arguments.model))
    asked = {name: getattr(arguments, name) for name in TASKS_OF}
    check_task(bundle.task, [name for name, value in asked.items() if value not in (None, [])], "--")
    if bundle.task != "translate" and (arguments.from_language or arguments.to_language):
        raise UserError(
            f"--from and --to are for models that translate, but this one is for the task {bundle.task}; leave them out"
        )
    if bundle.task != "translate" and arguments.attention not in (None, "encoder"):
        raise UserError(f"--attention must be encoder for a model without a decoder, but is {arguments.attention}")
    text = EXAMPLE if arguments.text is None else arguments.text
    explanation = (
        _translation(arguments, bundle, text, force)
        if bundle.task == "translate"
        else _encoded(arguments, bundle, text)
    )
    if arguments.output:
        options = {
            "kind": arguments.attention or "encoder",
            "layer": arguments.layer,
            "heads": arguments.head or (),
            "word": arguments.word,
            "pieces": arguments.pieces,
        }
        explanation.save(arguments.output, **(options if arguments.output.suffix.lower() in FIGURES else {}))
        sys.stderr.write(f"{escape(str(arguments.output))}: written\n")
    # Not indented: attention matrices with a number per line would be unreadable.
    if isinstance(explanation, EncoderExplanation):
        if note := window_note(explanation):
            sys.stderr.write(f"note: {escape(note)}\n")
        shown = "\n".join(lines(explanation))
    else:
        shown = explanation.translation
    text = json.dumps(explanation.to_json()) if arguments.json else shown
    sys.stdout.write((for_terminal(text) if sys.stdout.isatty() else text) + "\n")


def _translation(arguments: argparse.Namespace, bundle: Bundle, text: str, force: dict[int, str]) -> Explanation:
    from regard.explain.explainer import Explainer
    from regard.generate.options import SearchOptions
    from regard.translation.directions import choose_direction

    bundle = bundle.toward(*choose_direction(bundle.pairs, arguments.from_language, arguments.to_language, [text]))
    with naming_options():
        search = SearchOptions.of(bundle).changed(arguments.beam, arguments.alpha, 1)
    return Explainer(bundle).explain(
        text, search, target=arguments.target, prefix=arguments.prefix, force=force, top=arguments.top
    )


def _encoded(arguments: argparse.Namespace, bundle: Bundle, text: str) -> EncoderExplanation:
    from regard.explain.encoder_explainer import EncoderExplainer

    with naming_options(("label", "token", "at", "window", "top")):
        explainer = EncoderExplainer(bundle)
        return explainer.explain(
            explainer.split(text),
            label=arguments.label,
            token=arguments.token,
            at=arguments.at,
            window=arguments.window,
            top=arguments.top,
        )


def _forced(pairs: Sequence[str]) -> dict[int, str]:
    """`2=Hund` -> {2: "Hund"}"""
    force: dict[int, str] = {}
    for pair in pairs:
        number, _, word = pair.partition("=")
        if not (number.strip().isdecimal() and len(number) < 10 and word.strip()):
            raise UserError(f"--force must be N=WORD, such as 2=Hund, but is {shorten(pair)}")
        if int(number) in force:
            raise UserError(f"--force names word {int(number)} twice")
        force[int(number)] = word
    return force
