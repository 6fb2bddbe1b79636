"""Makes one direction of the built-in models, or one model for both directions, in stages that can be resumed.

    python -m scripts.builtin en de DATA OUT
    python -m scripts.builtin en de DATA OUT --until text
    python -m scripts.builtin en fr DATA OUT --both

DATA holds the text (docs/builtin-model.md). The stages, in order:

    text         training text by rules and from lists (scripts/builtin_text)
    back         back-translation of text in the target language, if there is a model of the other direction; with --both the
                 teacher's translations of the other direction take its place
    vocabulary   the teacher's
    teacher      training of the large model
    distill      its translations of the training text, and the same pairs as people type them
    student      training of the small model
    int8         its weights in int8
    scores       BLEU and chrF of all three on every test set that is there, and the checks
    card         scores, sources and limits in the model's card

OUT/stages.json lists each finished stage with the SHA-256 of everything that it read and wrote. A finished stage is not run again;
one that was interrupted goes on where it was. If a command of a stage fails, everything ends at once.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from regard.builtin import builtin_models
from regard.bundle import add_facts
from regard.data.corpus import brace_labels, name_files, read_lines
from regard.files import sha256, write_atomic
from scripts.builtin_corpora import MONOLINGUAL, Corpora, corpora_of, joint_recipe, recipe_of
from scripts.builtin_text.__main__ import parts_of
from scripts.builtin_text.languages import LANGUAGES, beside_english, is_direction

HERE = Path(__file__).resolve().parent
PIECE = 16_384  # lines that a process translates at a time
# A student that starts from a model is trained like a new one, with a shorter warm-up: it has new kinds of text to learn.
FROM_MODEL = ("--set", "train.lr=1e-3", "--set", "train.warmup=500", "--set", "train.seed=2")
SCORING = 1.3  # minutes for everything after the student, if the time is limited
Record = tuple[Iterable[Path], Iterable[Path]]  # what a stage read, and what it wrote


@dataclass(frozen=True)
class Piece:
    """Some lines of a corpus for the teacher to translate."""

    name: str  # of the corpora that are made of it
    text: Path  # its lines in the source language
    distilled: str  # the corpus to make, as a recipe names it
    noised: str  # and the one with noise; empty: none

    @property
    def made(self) -> list[Path]:
        """The files of both corpora."""
        return [
            path for spec in (self.distilled, self.noised) if spec for path in name_files(spec, *brace_labels(spec)[0])
        ]


@dataclass
class Making:
    """One direction, or both, and where everything lies."""

    source: str
    target: str
    data: Path
    out: Path
    jobs: int = 1
    reverse: str = ""  # a model of the other direction
    init: str = ""  # what the student starts from
    minutes: float = 0.0  # for everything; 0: no limit
    distill_minutes: float = 0.0
    teacher_options: Sequence[str] = ()
    student_options: Sequence[str] = ()
    both: bool = False  # one model for the other direction, too
    folder: str = ""  # of this direction's text, where there are two
    started: float = field(default_factory=time.monotonic)
    scoring: dict[str, list[Future[Path]]] = field(default_factory=dict)  # of each model, beside the stages

    @property
    def text(self) -> Path:
        return self.out / "text" / self.folder

    @property
    def pair(self) -> str:
        """The name of the model."""
        return f"{self.source}{'+' if self.both else '-'}{self.target}"

    @property
    def halves(self) -> list[Making]:
        """Each direction by itself."""
        if not self.both:
            return [self]
        pairs = ((self.source, self.target), (self.target, self.source))
        return [replace(self, source=a, target=b, both=False, folder=f"{a}-{b}") for a, b in pairs]

    @property
    def corpora(self) -> Corpora:
        return corpora_of(self.source, self.target)

    def both_sides(self, name: str, end: str = "") -> str:
        """A corpus of the text folder, as a recipe names it."""
        return f"{self.text / name}.{{{self.source},{self.target}}}{end}"

    def files(self, name: str, end: str = "") -> list[Path]:
        return [self.text / f"{name}.{language}{end}" for language in (self.source, self.target)]

    # --- the stages ---

    def make_text(self) -> Record:
        written = []
        for half in self.halves:
            run("-m", "scripts.builtin_text", half.source, half.target, self.data, half.text / "made")
            parts = parts_of(half.source, half.target)
            written += [path for part in parts for path in half.files(f"made/{part}", ".xz")]
        return self.inputs(self.corpora.text_reads), written

    def make_back(self) -> Record:
        if self.both or not (self.reverse or f"{self.target}-{self.source}" in builtin_models()):
            print("no back-translation: there is no model of the other direction", flush=True)
            return [], []
        alone, made = self.data / f"{MONOLINGUAL}.{self.target}.xz", "made/back-common-voice"
        given = ("-m", self.reverse or f"{self.target}-{self.source}", "--beam", "1")
        if not all(path.exists() for path in self.files(made, ".xz")):
            call_regard(
                "augment", "--back-translate", *given, "-i", alone, "-o", self.both_sides(made, ".xz"), "--resume"
            )
        return [alone], self.files(made, ".xz")

    def make_vocabulary(self) -> Record:
        from regard.recipe import load_recipe
        from regard.training.display import Display
        from regard.training.folder import RunFolder
        from regard.training.prepare import find_corpora, make_tokenizer

        folder = RunFolder(self.out / "vocabulary")
        folder.path.mkdir(exist_ok=True)
        recipe = load_recipe(self.recipe("teacher"), [*self.languages, *_values(self.teacher_options)])
        make_tokenizer(recipe, find_corpora(recipe), None, folder, Display())
        return self.teacher_text(), bundle_files(folder.tokenizer)

    def make_teacher(self) -> Record:
        self.train(
            "teacher", "--set", f"tokenizer.folder={self.out / 'vocabulary' / 'tokenizer'}", *self.teacher_options
        )
        return [self.recipe("teacher"), *self.teacher_text()], bundle_files(self.out / "teacher" / "model")

    def make_distilled(self) -> Record:
        pieces = [piece for name in self.corpora.distilled for half in self.halves for piece in half.pieces(name)]
        self.score_beside("teacher", 1)
        distill_pieces(self, pieces)
        done = [piece for piece in pieces if all(path.exists() for path in piece.made)]
        print(f"{len(done)} of {len(pieces)} pieces translated", flush=True)
        return [piece.text for piece in done], [path for piece in done for path in piece.made]

    def pieces(self, name: str) -> Iterator[Piece]:
        """A corpus in pieces, their lines written to files."""
        lines = read_lines(self.text / f"{name}.{self.source}.xz")
        for number in itertools.count():
            title = f"{name.replace('/', '-')}-{number:02d}"
            noised = "" if name in self.corpora.no_noise else self.both_sides(f"noised/{title}")
            text = self.text / "pieces" / f"{title}.{self.source}"
            piece = Piece(title, text, self.both_sides(f"distilled/{title}"), noised)
            if not (chosen := list(itertools.islice(lines, PIECE))):
                return
            if not piece.text.exists():
                piece.text.parent.mkdir(exist_ok=True)
                write_atomic(piece.text, "".join(f"{line}\n" for line in chosen))
            yield piece

    def make_student(self) -> Record:
        options = list(self.student_options)
        if self.init:  # whose vocabulary is used; the recipe's size gives way to the default
            options = ["--set", f"train.init={self.init}", "--set", "tokenizer.vocab_size=32000", *FROM_MODEL, *options]
        if self.minutes:
            left = self.minutes - (time.monotonic() - self.started) / 60 - SCORING
            options += ["--set", f"train.minutes={max(left, 1.0):.2f}"]
        self.train("student", *options)
        trained = self.out / "student" / "model"
        if _facts(trained)["weights"].endswith(", unchanged"):  # judged by news alone, the start was as good
            print("no step beat the model that the student started from; taking the last step all the same", flush=True)
            last = self.out / "student-last"
            if not last.exists():
                call_regard("average", self.out / "student", "--last", "1", "--out", last)
                facts = _facts(trained)
                add_facts(last, {name: facts[name] for name in ("device", "pairs", "corpora", "minutes", "init")})
        folders = [half.text / name for half in self.halves for name in ("distilled", "noised", "made")]
        read = [path for folder in folders for path in folder.iterdir()]
        return [self.recipe("student"), *read], bundle_files(self.student)

    @property
    def student(self) -> Path:
        last = self.out / "student-last"
        return last if last.exists() else self.out / "student" / "model"

    def make_int8(self) -> Record:
        small = self.out / self.pair
        self.score_beside("student", self.jobs)
        if not small.exists():
            call_regard("export", "--to", "bundle", "--weights", "int8", "-m", self.student, "-o", small)
        return bundle_files(self.student), bundle_files(small)

    def make_scores(self) -> Record:
        for name in ("teacher", "student", "int8"):
            if name not in self.scoring:
                self.score_beside(name, self.jobs)
        started = [future for futures in self.scoring.values() for future in futures]
        wait(started, return_when=FIRST_EXCEPTION)
        return [], [future.result() for future in started]

    def score_beside(self, name: str, jobs: int) -> None:
        """Start all scores of a model, `jobs` at a time."""
        model = {"teacher": self.out / "teacher", "student": self.student, "int8": self.out / self.pair}[name]
        pool, scoring = ThreadPoolExecutor(jobs), self.scoring.setdefault(name, [])
        for half in self.halves:
            direction = ("--from", half.source, "--to", half.target)
            end = f"-{half.folder}" if self.both else ""
            for test in self.corpora.test_sets:
                source, reference = (self.data / f"{test}.{code}.xz" for code in (half.source, half.target))
                if source.exists():
                    path = self.out / "scores" / f"{name}-{test.replace('/', '-')}{end}.json"
                    arguments = (
                        "evaluate",
                        "-m",
                        model,
                        *direction,
                        "--source",
                        source,
                        "--reference",
                        reference,
                        "--json",
                    )
                    scoring.append(pool.submit(output_of, path, "-m", "regard", *arguments))
            path = self.out / "scores" / f"checks-{name}{end}.json"
            scoring.append(pool.submit(output_of, path, "-m", "benchmarks.checks", "-m", model, *direction, "--json"))
        pool.shutdown(wait=False)

    def make_card(self) -> Record:
        start = ["--init", self.init] if self.init else []
        run(
            "-m", "scripts.builtin_card", self.out / self.pair, self.out / "scores", "--teacher", self.out / "teacher", *start
        )  # fmt: skip
        return sorted((self.out / "scores").iterdir()), bundle_files(self.out / self.pair)

    @property
    def languages(self) -> list[str]:
        return [f"data.source={self.source}", f"data.target={self.target}", f"data.root={self.text}"]

    def recipe(self, name: str) -> Path:
        """The recipe of the "teacher" or the "student"; that of both directions is written first."""
        own = recipe_of(name, self.source, self.target)
        if not self.both:
            return own
        written = self.out / f"{name}.toml"
        pairs = [(half.source, half.target) for half in self.halves]
        if not written.exists():
            write_atomic(written, joint_recipe(own, pairs, turns=name == "student"))
        return written

    def train(self, name: str, *options: str) -> None:
        if not (self.out / name / "model").exists():
            sets = [argument for value in self.languages for argument in ("--set", value)]
            call_regard("train", self.recipe(name), *sets, "--out", self.out / name, "--resume", *options)

    def teacher_text(self) -> list[Path]:
        made = [path for half in self.halves for path in sorted((half.text / "made").glob("*.xz"))]
        return [*self.inputs(self.corpora.teacher_reads), *made]

    def inputs(self, patterns: Sequence[str]) -> list[Path]:
        return [
            path
            for pattern in patterns
            for code in ("en", beside_english(self.source, self.target).code)
            for path in sorted(self.data.glob(f"{pattern}.{code}.xz"))
        ]


STAGES: dict[str, Callable[[Making], Record]] = {
    "text": Making.make_text,
    "back": Making.make_back,
    "vocabulary": Making.make_vocabulary,
    "teacher": Making.make_teacher,
    "distill": Making.make_distilled,
    "student": Making.make_student,
    "int8": Making.make_int8,
    "scores": Making.make_scores,
    "card": Making.make_card,
}


def distill_pieces(making: Making, pieces: Sequence[Piece]) -> None:
    """Translate the pieces in `making.jobs` processes: one alone does not keep a GPU busy while it reads and writes text. After
    `making.distill_minutes` no further piece is begun."""
    left: SimpleQueue[Piece] = SimpleQueue()
    for piece in pieces:
        if not all(path.exists() for path in piece.made):
            left.put(piece)
    begun = time.monotonic()

    def work() -> None:
        arguments = ("-m", "scripts.builtin_distill", making.out / "teacher")
        with started(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            while not making.distill_minutes or time.monotonic() - begun < making.distill_minutes * 60:
                try:
                    piece = left.get_nowait()
                except Empty:
                    break
                print(piece.text, piece.distilled, piece.noised, sep="\t", file=process.stdin, flush=True)
                if not (answer := process.stdout.readline()):
                    break
                print(f"{piece.name} ({time.monotonic() - begun:.0f} s): {answer.strip()}", flush=True)
            process.stdin.close()
            check(process)

    for half in making.halves:
        for folder in ("distilled", "noised"):
            (half.text / folder).mkdir(exist_ok=True)
    pool = ThreadPoolExecutor(making.jobs)
    futures = [pool.submit(work) for _ in range(min(making.jobs, left.qsize()))]
    finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
    pool.shutdown(wait=False)  # after a failure the program ends
    for future in finished:
        future.result()


def bundle_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _values(options: Sequence[str]) -> list[str]:
    """What `--set` is followed by."""
    return [value for option, value in itertools.pairwise(options) if option == "--set"]


def _facts(bundle: Path) -> dict[str, Any]:
    return dict(json.loads((bundle / "config.json").read_text(encoding="utf-8"))["facts"])


# --- processes ---

_running: set[subprocess.Popen[Any]] = set()
_starting = threading.Lock()


@contextmanager
def started(*arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process with Python, in the repository; it is killed when this program fails."""
    command = [sys.executable, *map(str, arguments)]
    print("$ python", shlex.join(command[1:]), flush=True)
    with _starting:
        process = subprocess.Popen(command, cwd=HERE.parent, **options)
        _running.add(process)
    with process:
        yield process
    _running.discard(process)


def check(process: subprocess.Popen[Any]) -> None:
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, process.args)


def end_all() -> None:
    """Ends this program and what it has started."""
    with _starting:
        try:
            left = list(_running)
            for process in left:
                process.kill()
            for process in left:
                process.wait(10)
        finally:
            os._exit(1)  # threads would go on


def run(*arguments: str | Path) -> None:
    with started(*arguments) as process:
        check(process)


def call_regard(*arguments: str | Path) -> None:
    run("-m", "regard", *arguments)


def output_of(path: Path, *arguments: str | Path) -> Path:
    """The file with what a command prints; it is not run again where the file is there."""
    if not path.exists():
        with started(*arguments, stdout=subprocess.PIPE) as process:
            printed, _ = process.communicate()
            check(process)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, printed)
    return path


def link_data(making: Making) -> None:
    """The folders of DATA beside what is made, so that one data.root holds all."""
    for half in making.halves:
        half.text.mkdir(parents=True, exist_ok=True)
        for folder in sorted(path for path in making.data.iterdir() if path.is_dir()):
            link = half.text / folder.name
            if not link.exists():
                link.symlink_to(folder)


def run_stages(making: Making, until: str) -> None:
    listed = making.out / "stages.json"
    finished = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    for name, stage in STAGES.items():
        if name not in finished:
            print(f"\n== {name} ({datetime.datetime.now():%H:%M:%S})", flush=True)
            begun = time.monotonic()
            read, written = stage(making)
            finished[name] = {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "seconds": round(time.monotonic() - begun),
                "read": {_name(path, making): sha256(path) for path in read},
                "written": {_name(path, making): sha256(path) for path in written},
            }
            write_atomic(listed, json.dumps(finished, indent=2) + "\n")
        if name == until:
            return


def _name(path: Path, making: Making) -> str:
    for name, folder in (("OUT", making.out), ("DATA", making.data), ("", HERE.parent)):
        if path.is_relative_to(folder):
            return str(Path(name) / path.relative_to(folder))
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("en", *LANGUAGES))
    parser.add_argument("target", choices=("en", *LANGUAGES))
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--both", action="store_true", help="one model for both directions")
    parser.add_argument("--until", choices=tuple(STAGES), default="card", help="the last stage to run (default: card)")
    parser.add_argument(
        "--reverse", default="", metavar="MODEL", help="for back-translation (default: the built-in one)"
    )
    parser.add_argument("--init", default="", metavar="MODEL", help="for the student to start from (default: none)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that use the teacher (default: 1)")
    parser.add_argument("--minutes", type=float, default=0, help="for everything; the student gets what is left")
    parser.add_argument(
        "--distill-minutes", type=float, default=0, help="after which the teacher begins no further text"
    )
    parser.add_argument("--teacher", default="", metavar="OPTIONS", help='for its training: "--set train.minutes=60"')
    parser.add_argument("--student", default="", metavar="OPTIONS", help="likewise")
    arguments = parser.parse_args()
    if not is_direction(arguments.source, arguments.target):
        parser.error("one of the two languages must be English")
    making = Making(
        arguments.source,
        arguments.target,
        arguments.data.resolve(),
        arguments.out.resolve(),
        arguments.jobs,
        arguments.reverse,
        arguments.init,
        arguments.minutes,
        arguments.distill_minutes,
        shlex.split(arguments.teacher),
        shlex.split(arguments.student),
        both=arguments.both,
    )
    try:
        link_data(making)
        run_stages(making, arguments.until)
    except BaseException:  # noqa: BLE001 - also Ctrl-C: nothing may go on in the background
        traceback.print_exc()
        print(f"FAILED ({datetime.datetime.now():%H:%M:%S})", flush=True)
        end_all()


if __name__ == "__main__":
    main()
