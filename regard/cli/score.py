"""`regard score`: log-probabilities of given translations, and of texts by a language model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import ENSEMBLE, add_adapter, add_model, load_model, naming_options, print_result, verb
from regard.cli.languages import add_direction
from regard.errors import UserError
from regard.escaping import escape

if TYPE_CHECKING:
    from regard.api import Model
    from regard.writing.scoring import TextScorer

_NAMED_LINES = 5  # of lines beyond the context that are named


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "score",
        run,
        "print the log-probability of given translations or texts",
        "Print the log-probability of given translations, one per line; or with a language model, of texts: log-probability, nats "
        "a token, bits per byte and perplexity of each file, or of each line.",
    )
    add_model(parser, several=ENSEMBLE)
    add_adapter(parser)
    add_direction(parser)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="with a language model: texts to score")
    parser.add_argument("--source", type=Path, metavar="FILE", help="source sentences, one per line")
    parser.add_argument("--target", type=Path, metavar="FILE", help="their translations, one per line")
    parser.add_argument("--lines", action="store_true", help="with a language model: each line is a text")
    add_stride(parser)
    parser.add_argument("--json", action="store_true", help="print JSON; of translations with every token")


def add_stride(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="with a language model: new tokens of each window of a text beyond its context (default: half a window)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print a log-probability for each pair of lines, or the likelihood of each text."""
    if arguments.files:
        if arguments.source or arguments.target:
            raise UserError("score takes FILE ... with a language model or --source and --target, but got both")
        _score_texts(arguments)
        return
    if not arguments.source or not arguments.target:
        raise UserError("score needs FILE ... with a language model, or --source FILE and --target FILE")
    if arguments.lines or arguments.stride is not None:
        raise UserError(f"{'--lines' if arguments.lines else '--stride'} is for a language model; name its FILE")
    from regard.data.corpus import Corpus

    pairs = list(Corpus("", arguments.source, arguments.target).pairs())
    model = load_model(arguments, sample=(source for source, _ in pairs))
    scored = model.token_scores([source for source, _ in pairs], [target for _, target in pairs])
    document = [
        {"source": source, "target": target, "log_prob": sum(tokens), "token_log_probs": tokens}
        for (source, target), tokens in zip(pairs, scored, strict=True)
    ]
    print_result(arguments, document, [f"{sum(tokens):.6f}" for tokens in scored])


def open_scorer(arguments: argparse.Namespace) -> TextScorer:
    """The scorer of a language model. With `auto` torch computes it, in full precision; on CPUs CTranslate2 would in int8."""
    if arguments.model is None or len(arguments.model) != 1:
        raise UserError("a language model must be named by one -m MODEL")
    if arguments.engine == "auto":
        arguments.engine = "torch"
    model: Model = load_model(arguments, task="generate")
    with naming_options(("stride",)):
        return model.text_scorer(arguments.stride)


def _score_texts(arguments: argparse.Namespace) -> None:
    from regard.data.corpus import check_file, read_lines
    from regard.evaluate import aligned
    from regard.progress import progress
    from regard.writing.scoring import total

    for path in arguments.files:
        check_file(path)
    texts: list[tuple[str, str]] = []  # where each text stands, and the text
    for path in arguments.files:
        lines = list(read_lines(path))
        if arguments.lines:
            texts += [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
        elif text := "\n".join(lines).strip("\n"):
            texts.append((str(path), text))
        else:
            raise UserError(f"{path}: must have text, but is empty")
    if not texts:
        raise UserError(f"{arguments.files[0]}: must have text, but has only empty lines")
    scorer = open_scorer(arguments)
    with progress("scoring", len(texts), "lines" if arguments.lines else "texts") as done:
        scores = scorer.score([text for _, text in texts], done)
    named = [(where, score) for (where, _), score in zip(texts, scores, strict=True)]
    if beyond := [where for where, score in named if score.windows > 1]:
        some = ", ".join(beyond[:_NAMED_LINES]) + (", ..." if len(beyond) > _NAMED_LINES else "")
        note = (
            f"note: {len(beyond):,} of {len(named):,} texts are longer than a window of {scorer.window:,} tokens and were read in "
            f"several, {scorer.stride:,} new tokens in each: {some}"
        )
        sys.stderr.write(f"{escape(note)}\n")
    whole = total(scores)
    document = {
        "texts": [{"text": where, **score.to_json()} for where, score in named],
        "total": whole.to_json(),
        "window": scorer.window,
        "stride": scorer.stride,
    }
    shown = [*named, ("all", whole)] if len(named) > 1 else named
    rows = [("", "log-probability", "nats a token", "bits per byte", "perplexity", "tokens", "bytes")]
    for where, one in shown:
        rows.append(
            (where, f"{one.log_prob:.4f}", f"{one.loss:.4f}", f"{one.bits_per_byte:.4f}", f"{one.perplexity:.3f}",
             f"{one.num_tokens:,}", f"{one.num_bytes:,}")
        )  # fmt: skip
    print_result(arguments, document, aligned(rows))
