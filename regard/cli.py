"""The command line: verbs to typed functions. Errors become one clear line and an exit code: 2 for what the person can repair,
1 for anything else. Nothing slow is imported until a verb needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from regard.errors import RegardError, UserError
from regard.version import __version__

if TYPE_CHECKING:
    from regard.api import Model
    from regard.augment import Augmented
    from regard.decode.options import SearchOptions
    from regard.decode.text import Result


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # so that a reader who has left is noticed here
        return 0
    except RegardError as error:
        sys.stderr.write(f"regard: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("regard: interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader of our output has left; nothing more can be said to it, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A full disk, a folder that may not be written: the system's own words say what.
        sys.stderr.write(f"regard: {error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}\n")
        return 1


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="regard",
        description='The Transformer of "Attention Is All You Need" as a tool: train, translate, evaluate.',
        epilog="regard VERB --help tells more of each.",
    )
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=_Parser)
    _add_train(verbs)
    _add_translate(verbs)
    _add_evaluate(verbs)
    _add_score(verbs)
    _add_explain(verbs)
    _add_serve(verbs)
    _add_export(verbs)
    _add_import(verbs)
    _add_augment(verbs)
    _add_average(verbs)
    _add_info(verbs)
    return parser


def _verb(verbs: Any, name: str, run: Any, help: str, description: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=description or help)
    parser.set_defaults(run=run)
    return parser


def _add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    if several:
        parser.add_argument(
            "-m", "--model", action="append", metavar="MODEL", help="a bundle or a run folder; may come several times"
        )
    else:
        parser.add_argument("-m", "--model", metavar="MODEL", help="a bundle or a run folder")
    parser.add_argument(
        "--engine",
        default="auto",
        choices=("auto", "torch", "ctranslate2"),
        help="auto: ctranslate2 on CPUs where it is installed and knows the model, else torch (default: auto)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    parser.add_argument(
        "--batch", type=int, default=0, metavar="N", help="sentences computed together (default: by device)"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, metavar="N", help="beam width; 1 is greedy (default: the model's, as a rule 4)"
    )
    parser.add_argument(
        "--alpha", type=float, metavar="A", help="length penalty ((5 + |Y|) / 6)^A (default: the model's, 0.6)"
    )


# --- train ---


def _add_train(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "train",
        run_train,
        "train a model from a recipe, or from two parallel files",
        "Train a model from a recipe (one .toml file), or from two parallel text files with everything chosen for you.",
    )
    parser.add_argument(
        "inputs", nargs="+", metavar="RECIPE.toml | SRC TGT", help="a recipe, or source and target text"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a field of the recipe"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest intact checkpoint, if there is one"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be trained and how long it takes, and stop"
    )
    parser.add_argument(
        "--dump-recipe", action="store_true", help="write the resolved recipe to standard output and stop"
    )


def run_train(arguments: argparse.Namespace) -> None:
    from regard.recipe import load_recipe

    inputs: list[str] = arguments.inputs
    lines: list[str] = []
    if len(inputs) == 1:
        if not inputs[0].endswith(".toml"):
            raise UserError(
                f"{inputs[0]}: one argument must be a recipe that ends in .toml; for plain text give SRC and TGT"
            )
        recipe = load_recipe(Path(inputs[0]), arguments.set)
        name = Path(inputs[0]).stem
    elif len(inputs) == 2:
        from regard.training.auto import choose_recipe

        choice = choose_recipe(Path(inputs[0]), Path(inputs[1]), arguments.set)
        recipe = choice.recipe
        lines = [] if arguments.dump_recipe else choice.lines()
        name = f"{recipe.data.source}-{recipe.data.target}"
    else:
        raise UserError(f"train takes one recipe or two text files, but got {len(inputs)} arguments")
    if arguments.dump_recipe:
        sys.stdout.write(recipe.to_toml())
        return
    if not lines and arguments.dry_run:
        from regard.training.auto import describe_recipe

        lines = describe_recipe(recipe)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    if arguments.dry_run:
        return
    from regard.training.run import train

    train(recipe, arguments.out or Path("runs") / name, resume=arguments.resume)


# --- translate ---


def _add_translate(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "translate",
        run_translate,
        "translate text, a file or standard input",
        "Translate. Line N of the output is the translation of line N of the input, also when that line is empty.",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="sentences; without any, -i or standard input is read")
    _add_model(parser)
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="file to translate (also .gz, .xz, .zst)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where the translations go (default: standard output)"
    )
    _add_search(parser)
    parser.add_argument(
        "--nbest", type=int, default=1, metavar="N", help="N translations a line: line number, score, text"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with -i and -o: go on after the last line that was written"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run_translate(arguments: argparse.Namespace) -> None:
    from regard.decode.lines import LineFile, read_available

    if arguments.text and arguments.input:
        raise UserError("translate takes TEXT or -i FILE, but got both")
    if arguments.resume and not (arguments.input and arguments.output):
        raise UserError("--resume needs -i FILE and -o FILE: only then is it known which lines are done")
    if arguments.nbest > 1 and arguments.resume:
        raise UserError("--resume goes with one translation a line; leave out --nbest")
    if arguments.json and arguments.resume:
        raise UserError("--resume goes with plain lines; leave out --json")
    model = _load(arguments)
    options = model.search_options(arguments.beam, arguments.alpha, arguments.nbest)
    if arguments.input:
        from regard.data.corpus import read_lines

        # A pipe can be read only once, so its lines are not counted first.
        total = sum(1 for _ in read_lines(arguments.input)) if arguments.input.is_file() else 0
        blocks = _blocks(read_lines(arguments.input), model.chunk)
    else:
        total = len(arguments.text)
        if not arguments.text and sys.stdin is None:
            raise UserError("there is no TEXT, no -i FILE and no standard input to translate")
        blocks = iter([arguments.text]) if arguments.text else read_available(sys.stdin.buffer, model.chunk)
    with LineFile(arguments.output, arguments.resume) as out:
        _translate_blocks(model, options, blocks, total, out, arguments)


def _blocks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    from itertools import islice

    while block := list(islice(lines, size)):
        yield block


def _translate_blocks(
    model: Model,
    options: SearchOptions,
    blocks: Iterator[list[str]],
    total: int,
    out: Any,
    arguments: argparse.Namespace,
) -> None:
    from contextlib import nullcontext

    from regard.progress import progress

    document: list[dict[str, Any]] = []
    number = 0
    skip = out.lines_done
    bar = progress("translating", total, before=skip) if total > 1 else nullcontext(lambda count: None)
    with bar as done:
        for block in blocks:
            skipped = min(skip, len(block))
            skip -= skipped
            number += skipped
            for result in model.stream(block[skipped:], options, done=done):
                number += 1
                if arguments.json:
                    document.append(_result_json(result))
                elif arguments.nbest > 1:
                    out.write("".join(f"{number}\t{way.score:.4f}\t{way.text}\n" for way in result.translations))
                else:
                    out.write(result.text + "\n")
            out.flush()
    if skip:
        raise UserError(
            f"--resume: {arguments.output}.partial has {skip} more lines than {arguments.input}, so it belongs to another file; "
            f"name that one, or remove {arguments.output}.partial"
        )
    if arguments.json:
        out.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def _result_json(result: Result) -> dict[str, Any]:
    return {
        "source": result.source,
        "translations": [{"text": way.text, "score": way.score} for way in result.translations],
    }


def _load(arguments: argparse.Namespace) -> Model:
    from regard.bundle import find_bundle

    folder = find_bundle(arguments.model)  # before anything slow is imported: a wrong name is said at once
    batch = _batch(arguments)
    from regard.api import load

    return load(folder, device=arguments.device, batch=batch, engine=arguments.engine)


def _batch(arguments: argparse.Namespace) -> int:
    batch: int = arguments.batch
    if batch < 0:
        raise UserError(f"--batch must be at least 1, but is {batch}")
    return batch


# --- evaluate ---


def _add_evaluate(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "evaluate",
        run_evaluate,
        "BLEU, chrF and TER of a model or of translations; comparing two systems",
        "Score a model's translations of --source, or a file of translations, against --reference.",
    )
    _add_model(parser)
    parser.add_argument("--hypothesis", type=Path, metavar="FILE", help="score this file instead of translating")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with this second system's translations")
    parser.add_argument("--source", type=Path, metavar="FILE", help="text to translate with the model")
    parser.add_argument("--reference", type=Path, required=True, metavar="FILE", help="correct translations")
    parser.add_argument("--target-language", metavar="CODE", help="picks sacreBLEU's tokenizer for zh, ja and ko")
    parser.add_argument("--bootstrap", type=int, default=1000, metavar="N", help="resamples for the intervals; 0: none")
    _add_search(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the model's translations there")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run_evaluate(arguments: argparse.Namespace) -> None:
    from regard.data.corpus import read_lines
    from regard.evaluate import compare, score

    if arguments.hypothesis:
        ignored = {"-m": arguments.model, "--source": arguments.source, "-o": arguments.output}
        ignored |= {"--beam": arguments.beam, "--alpha": arguments.alpha}
        if given := [name for name, value in ignored.items() if value is not None]:
            raise UserError(
                f"--hypothesis is scored as it is; leave out {' and '.join(given)}, or leave out --hypothesis"
            )
    if arguments.output and not arguments.output.resolve().parent.is_dir():
        raise UserError(f"{arguments.output}: the folder {arguments.output.parent} does not exist")
    references = list(read_lines(arguments.reference))
    language = arguments.target_language
    if arguments.hypothesis:
        hypotheses, name = list(read_lines(arguments.hypothesis)), str(arguments.hypothesis)
    else:
        if not arguments.source:
            raise UserError("evaluate needs --source FILE to translate with a model, or --hypothesis FILE to score")
        sources = list(read_lines(arguments.source))
        if len(sources) != len(references):
            raise UserError(
                f"{arguments.source} has {len(sources)} lines, but {arguments.reference} has {len(references)}: "
                f"line N of one must translate line N of the other"
            )
        model = _load(arguments)
        language = language or model.bundle.target
        hypotheses, name = _translate_all(model, sources, arguments), str(arguments.model)
    if arguments.against:
        other = list(read_lines(arguments.against))
        names = (name, str(arguments.against), str(arguments.reference))
        comparison = compare(
            hypotheses, other, references, target_language=language, bootstrap=arguments.bootstrap, names=names
        )
        _print(arguments, comparison.to_json(), comparison.lines())
        return
    scores = score(
        hypotheses,
        references,
        target_language=language,
        bootstrap=arguments.bootstrap,
        names=(name, str(arguments.reference)),
    )
    _print(arguments, scores.to_json(), scores.lines())


def _translate_all(model: Model, sources: list[str], arguments: argparse.Namespace) -> list[str]:
    from regard.files import write_atomic
    from regard.progress import progress

    options = model.search_options(arguments.beam, arguments.alpha, 1)
    with progress("translating", len(sources)) as done:
        translations = [result.text for result in model.stream(sources, options, done=done)]
    if arguments.output:
        write_atomic(arguments.output, "".join(f"{line}\n" for line in translations))
    return translations


def _print(arguments: argparse.Namespace, document: Any, lines: Sequence[str]) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=2) if arguments.json else "\n".join(lines)
    sys.stdout.write(text + "\n")


# --- serve ---


def _add_serve(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "serve",
        run_serve,
        "translate over HTTP, with the APIs of LibreTranslate and DeepL",
        "Serve one or several models over HTTP, with the APIs of LibreTranslate and DeepL; /docs on the server tells more.",
    )
    _add_model(parser, several=True)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0: any that is free (default: 8000)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="server processes on the port (default: 1)")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="API keys; without it everybody who comes is served")
    parser.add_argument("--new-key", metavar="NAME", help="add a key of this name to --keys FILE, print it and stop")
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="change a limit, as in --limit characters=10000",
    )


def run_serve(arguments: argparse.Namespace) -> None:
    from regard.bundle import find_bundle
    from regard.serve.keys import add_key
    from regard.serve.limits import Limits

    if arguments.new_key is not None:
        if arguments.keys is None:
            raise UserError("--new-key needs --keys FILE: only a hash of the key is kept there")
        sys.stdout.write(add_key(arguments.keys, arguments.new_key) + "\n")
        return
    limits = Limits().changed(arguments.limit)
    models = [str(find_bundle(model)) for model in arguments.model or [None]]  # a wrong name is said at once
    batch = _batch(arguments)
    try:
        from regard.serve.web.run import Settings, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise UserError(
            f"serving needs more packages ({error.name} is missing); install them with pip install 'regard[serve]'"
        ) from None
    serve(
        Settings(
            models,
            host=arguments.host,
            port=arguments.port,
            engine=arguments.engine,
            device=arguments.device,
            batch=batch,
            keys=arguments.keys,
            workers=arguments.workers,
            limits=limits,
        )
    )


# --- export, import ---


def _add_export(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "export",
        run_export,
        "write a model for another program, or a smaller one, and compare the two",
        "Write a model for another program, or a smaller bundle. What was written is loaded there and compared with the original, "
        "token by token; where the numbers differ by more than rounding, nothing is left behind.",
    )
    parser.add_argument(
        "--to", required=True, metavar="FORMAT", help="ctranslate2, onnx, transformers, or bundle (a smaller one)"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help="a bundle or a run folder")
    parser.add_argument("--weights", metavar="TYPE", help="fp32, fp16 or int8 (default: fp32; for --to bundle, int8)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run_export(arguments: argparse.Namespace) -> None:
    from regard.bundle import find_bundle, load_bundle
    from regard.export import export

    bundle = load_bundle(find_bundle(arguments.model))
    report = export(bundle, arguments.to, arguments.output, arguments.weights)
    document = {
        "folder": str(report.folder),
        "to": arguments.to,
        "weights": report.weights,
        "difference": report.difference,
        "tolerance": report.tolerance,
        "notes": report.notes,
    }
    line = (
        f"{report.folder}: written for {arguments.to}, weights in {report.weights}; log-probabilities of tokens differ by up to "
        f"{report.difference:.2g} from the original's ({report.tolerance:.2g} would be too much)"
    )
    _print(arguments, document, [line, *(f"note: {note}" for note in report.notes)])


def _add_import(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "import",
        run_import,
        "make a bundle of a translation model of Hugging Face transformers",
        "Make a bundle of a translation model in Marian's format, such as those of OPUS-MT.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder with the model")
    parser.add_argument("--from", dest="format", required=True, choices=("transformers",), help="what wrote the folder")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="where the bundle goes")
    parser.add_argument(
        "--source", metavar="CODE", help="language that it translates from (default: as the folder says)"
    )
    parser.add_argument(
        "--target", metavar="CODE", help="language that it translates into (default: as the folder says)"
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read weights that are stored as a pickle, which can run any code: only from people whom you trust",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run_import(arguments: argparse.Namespace) -> None:
    from regard.export.imported import import_transformers

    bundle = import_transformers(
        arguments.folder,
        arguments.output,
        source=arguments.source,
        target=arguments.target,
        allow_pickle=arguments.allow_pickle,
    )
    document = {"folder": str(bundle.folder), "source": bundle.source, "target": bundle.target}
    _print(arguments, document, [f"{bundle.folder}: {bundle.source} → {bundle.target}"])


# --- augment ---


def _add_augment(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "augment",
        run_augment,
        "make training text: distillation, back-translation, noise",
        "Make a parallel corpus with a model, or with --noise from another one. Corpora are written as in the recipe that trains "
        "on the new one, in quotes: 'news.{en,de}.xz' is two files, 'news.tsv' one with tabs.",
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument(
        "--distill",
        dest="way",
        action="store_const",
        const="distill",
        help="the model's translation of the source side becomes the target side",
    )
    way.add_argument(
        "--back-translate",
        dest="way",
        action="store_const",
        const="back-translate",
        help="the model's translation of the target side becomes the source side; the model goes from target to source",
    )
    way.add_argument(
        "--noise",
        dest="way",
        action="store_const",
        const="noise",
        help="the pairs of a parallel corpus as people really type: without capitals, with typing errors, ...; needs no model",
    )
    _add_model(parser)
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        nargs="+",
        required=True,
        metavar="CORPUS",
        help="what it is made from: a corpus, or for a model a file in the one language; may be given several times, and * ? [abc] "
        "stand for what they match",
    )
    parser.add_argument("-o", "--output", nargs="+", required=True, metavar="CORPUS", help="the new corpus")
    _add_search(parser)
    parser.add_argument(
        "--choose",
        default="best",
        choices=("best", "bleu", "chrf"),
        help="which translation is taken: the model's best, or of the N best the one nearest to the reference, by the sentence's "
        "BLEU or chrF (default: best)",
    )
    parser.add_argument("--nbest", type=int, metavar="N", help="with --choose bleu or chrf (default: the beam)")
    parser.add_argument(
        "--max-ratio",
        type=float,
        metavar="R",
        help="drop pairs with one side more than R times as long as the other, in tokens (default: 4)",
    )
    parser.add_argument(
        "--keep-all", action="store_true", help="drop nothing: line N of the new corpus comes from line N of the input"
    )
    _add_noise(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on after the last line that was saved, if there is one"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _add_noise(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --noise")
    group.add_argument(
        "--kinds",
        metavar="A,B,...",
        help="of noise: lower, upper, unpunctuated, typos, join, copy, spacing (default: all)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="another seed, another noise (default: 1)")
    group.add_argument("--source", metavar="CODE", help="language of the source side, where no braces say it")
    group.add_argument("--target", metavar="CODE", help="language of the target side, where no braces say it")


# What the ways of augment do not share, with the values that nobody has given.
_FOR_MODELS = {
    "-m": None, "--engine": "auto", "--device": "auto", "--batch": 0, "--beam": None, "--alpha": None, "--choose": "best",
    "--nbest": None, "--max-ratio": None, "--keep-all": False,
}  # fmt: skip
_FOR_NOISE = {"--kinds": None, "--seed": None, "--source": None, "--target": None}


def run_augment(arguments: argparse.Namespace) -> None:
    if arguments.way == "noise":
        _refuse(arguments, _FOR_MODELS, "--noise needs no model")
        made = _make_noise(arguments)
    else:
        _refuse(arguments, _FOR_NOISE, f"--{arguments.way} makes no noise")
        made = _make_with_model(arguments)
    _print(arguments, made.to_json(), made.lines())


def _refuse(arguments: argparse.Namespace, options: Mapping[str, Any], why: str) -> None:
    for option, default in options.items():
        name = "model" if option == "-m" else option.strip("-").replace("-", "_")
        if getattr(arguments, name) != default:
            raise UserError(f"{why}; leave out {option}")


def _make_noise(arguments: argparse.Namespace) -> Augmented:
    from regard.augment import noise_corpus
    from regard.data.noise import KINDS

    return noise_corpus(
        [_one_corpus("-i", names) for names in arguments.input],
        _one_corpus("-o", arguments.output),
        kinds=KINDS if arguments.kinds is None else [kind.strip() for kind in arguments.kinds.split(",")],
        seed=1 if arguments.seed is None else arguments.seed,
        source=arguments.source,
        target=arguments.target,
        resume=arguments.resume,
    )


def _make_with_model(arguments: argparse.Namespace) -> Augmented:
    from regard.bundle import find_bundle

    if arguments.keep_all and arguments.max_ratio is not None:
        raise UserError("--keep-all drops nothing; leave out --max-ratio")
    folder = find_bundle(arguments.model)
    from regard.augment import MAX_RATIO, augment_corpus

    return augment_corpus(
        folder,
        [_one_corpus("-i", names) for names in arguments.input],
        _one_corpus("-o", arguments.output),
        way=arguments.way,
        beam=arguments.beam,
        alpha=arguments.alpha,
        nbest=arguments.nbest,
        choose=arguments.choose,
        max_ratio=MAX_RATIO if arguments.max_ratio is None else arguments.max_ratio,
        keep_all=arguments.keep_all,
        engine=arguments.engine,
        device=arguments.device,
        batch=_batch(arguments),
        resume=arguments.resume,
    )


def _one_corpus(option: str, names: Sequence[str]) -> str:
    """The one name that came; a shell makes two of NAME.{en,de} where there are no quotes."""
    if len(names) > 1:
        raise UserError(
            f"{option} takes one corpus, but got {len(names)} names, {names[0]} and {names[1]} first; put quotes around it, as in "
            f"{option} 'NAME.{{en,de}}', so that the shell leaves it alone"
        )
    return names[0]


# --- explain ---


def _add_explain(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "explain",
        run_explain,
        "look into a translation: attention, candidates, the beam, saliency; as a page or a figure",
        "Look into the translation of one sentence. A page (.html) shows every layer and head, the likeliest pieces at each "
        "step, the beam and saliency; a figure (.svg, .png) shows attention in the style of the paper's figures 3 to 5.",
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="a sentence (default: the one about the tired animal)")
    parser.add_argument("-m", "--model", metavar="MODEL", help="a bundle or a run folder")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="page.html, figure.svg, figure.png or data.json"
    )
    parser.add_argument("--target", metavar="TEXT", help="look at this translation instead of the model's own")
    parser.add_argument("--prefix", metavar="TEXT", help="what the translation begins with; the rest is searched for")
    parser.add_argument(
        "--force",
        action="append",
        default=[],
        metavar="N=WORD",
        help="what stands at word N of the translation, counted from 1; the rest is searched for; may be given several times",
    )
    _add_search(parser)
    parser.add_argument("--top", type=int, default=8, metavar="K", help="candidates shown at each step (default: 8)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    figure = parser.add_argument_group("figures")
    figure.add_argument(
        "--attention",
        choices=("encoder", "decoder", "cross"),
        help="which is drawn (default: encoder, as in the paper)",
    )
    figure.add_argument("--layer", type=int, metavar="N", help="from 1 (default: the last but one, as in the paper)")
    figure.add_argument(
        "--head", type=int, action="append", metavar="N", help="from 1; may be given several times (default: all)"
    )
    figure.add_argument("--word", metavar="WORD", help="draw only what this word looks at")
    figure.add_argument("--pieces", action="store_true", help="lines between pieces instead of words")


def run_explain(arguments: argparse.Namespace) -> None:
    import dataclasses

    from regard.bundle import find_bundle, load_bundle
    from regard.decode.options import SearchOptions
    from regard.explain.explanation import EXAMPLE
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
    search = SearchOptions(**dataclasses.asdict(bundle.decode)).changed(arguments.beam, arguments.alpha, 1)
    from regard.explain.explainer import Explainer

    explanation = Explainer(bundle).explain(
        EXAMPLE if arguments.text is None else arguments.text,
        search,
        target=arguments.target,
        prefix=arguments.prefix,
        force=force,
        top=arguments.top,
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
    # On one line: matrices with a number a line would be read by nobody.
    sys.stdout.write((json.dumps(explanation.to_json()) if arguments.json else explanation.translation) + "\n")


def _forced(pairs: Sequence[str]) -> dict[int, str]:
    """`2=Hund` -> {2: "Hund"}"""
    force: dict[int, str] = {}
    for pair in pairs:
        number, _, word = pair.partition("=")
        if not (number.strip().isdecimal() and word.strip()):
            raise UserError(f"--force must be N=WORD, such as 2=Hund, but is {pair!r}")
        if int(number) in force:
            raise UserError(f"--force names word {int(number)} twice")
        force[int(number)] = word
    return force


# --- score, average, info ---


def _add_score(verbs: Any) -> None:
    parser = _verb(verbs, "score", run_score, "log-probability of given translations, a line each")
    _add_model(parser)
    parser.add_argument("--source", type=Path, required=True, metavar="FILE")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run_score(arguments: argparse.Namespace) -> None:
    from regard.data.corpus import Corpus

    pairs = list(Corpus("", arguments.source, arguments.target).pairs())
    scores = _load(arguments).score([source for source, _ in pairs], [target for _, target in pairs])
    _print(arguments, scores, [f"{score:.6f}" for score in scores])


def _add_average(verbs: Any) -> None:
    parser = _verb(verbs, "average", run_average, "make a model of the average of a run's last checkpoints")
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="how many checkpoints (default: 5)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where the bundle goes")


def run_average(arguments: argparse.Namespace) -> None:
    from regard.training.finish import average

    bundle, used = average(arguments.run_folder, arguments.last, arguments.output)
    sys.stdout.write(f"{bundle.folder}: average of {', '.join(used)}\n")


def _add_info(verbs: Any) -> None:
    parser = _verb(verbs, "info", run_info, "parameters, vocabulary, languages, training data and scores of a model")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a bundle or a run folder")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run_info(arguments: argparse.Namespace) -> None:
    import dataclasses

    from regard.bundle import find_bundle, load_bundle

    bundle = load_bundle(find_bundle(arguments.model))
    document = {
        "folder": str(bundle.folder),
        "source": bundle.source,
        "target": bundle.target,
        "model": dataclasses.asdict(bundle.config),
        "decode": dataclasses.asdict(bundle.decode),
        "max_length": bundle.max_length,
        **bundle.facts,
    }
    card = (bundle.folder / "card.md").read_text(encoding="utf-8")
    if sys.stdout.isatty() and not arguments.json:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(card))
    else:
        _print(arguments, document, card.splitlines())
