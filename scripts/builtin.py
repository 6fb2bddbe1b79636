"""Makes one direction of the built-in models, in stages that can be resumed.

    python -m scripts.builtin en de DATA OUT
    python -m scripts.builtin en de DATA OUT --until text

DATA holds the text (docs/builtin-model.md). The stages, in order:

    text      training text by rules and from lists (scripts/builtin_text)
    back      back-translation of text in the target language; only with --reverse MODEL
    teacher   training of the large model
    distill   its translations of the training text
    noise     the same pairs as people type them
    student   training of the small model
    int8      its weights in int8
    scores    BLEU and chrF of all three on every test set that is there, and the checks
    card      scores, sources and limits in the model's card

OUT/stages.json lists each finished stage with the SHA-256 of everything that it read and wrote. A finished stage is not run again;
one that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from regard.files import sha256, write_atomic

HERE = Path(__file__).resolve().parent
RECIPES = HERE.parent / "recipes" / "builtin"
TEST_SETS = (
    "news/newstest2013", "news/newstest2014", "talks/tst2013", "talks/tst2014", "tatoeba/test", "europarl/test",
    "multi30k/test_2016_flickr",
)  # fmt: skip
# What the student learns from in the teacher's words. A small model learns little from still more of one kind of text: four
# parts of Europarl are enough for it, and the noise of one.
DISTILLED = (
    "tatoeba/train", "software/catalogues", "software/libreoffice", "software/debian-packages", "software/godot", "bible/train",
    "dict-de/ding-examples", "made/documents", "made/games", "made/people", "europarl/train-00", "europarl/train-01",
    "europarl/train-02", "europarl/train-03",
)  # fmt: skip
NO_NOISE = ("europarl/train-01", "europarl/train-02", "europarl/train-03")
MONOLINGUAL = "mono/common-voice"
# What the stages read of DATA, for the list of hashes.
TEXT_READS = (
    "tatoeba/train", "dict-de/*", "docs-de/*", "games-de/*", "wiki-de/*", "software-de/*", "software/libreoffice", "names-de/*",
    "europarl/train-0*", MONOLINGUAL,
)  # fmt: skip
TEACHER_READS = (
    "europarl/train-0*", "tatoeba/train", "software/*", "bible/train", "dict-de/ding-examples", "news/newstest2013",
)  # fmt: skip
Record = tuple[Iterable[Path], Iterable[Path]]  # what a stage read, and what it wrote


@dataclass(frozen=True)
class Making:
    """One direction, and where everything lies."""

    source: str
    target: str
    data: Path
    out: Path
    jobs: int
    reverse: str
    teacher_options: Sequence[str]
    student_options: Sequence[str]

    @property
    def text(self) -> Path:
        return self.out / "text"

    @property
    def pair(self) -> str:
        return f"{self.source}-{self.target}"

    def both(self, name: str, end: str = "") -> str:
        """A corpus of the text folder, as a recipe names it."""
        return f"{self.text / name}.{{{self.source},{self.target}}}{end}"

    def files(self, name: str, end: str = "") -> list[Path]:
        return [self.text / f"{name}.{language}{end}" for language in (self.source, self.target)]

    # --- the stages ---

    def make_text(self) -> Record:
        run("-m", "scripts.builtin_text", self.source, self.target, self.data, self.text / "made")
        return self.inputs(TEXT_READS), sorted((self.text / "made").glob("*.xz"))

    def make_back(self) -> Record:
        alone = self.data / f"{MONOLINGUAL}.{self.target}.xz"
        made = "made/back-common-voice"
        call_regard(
            "augment", "--back-translate", "-m", self.reverse, "-i", alone, "-o", self.both(made, ".xz"), "--resume"
        )
        return [alone], self.files(made, ".xz")

    def make_teacher(self) -> Record:
        recipe = RECIPES / "teacher.toml"
        self.train(recipe, "teacher", self.teacher_options)
        read = [recipe, *self.inputs(TEACHER_READS), *sorted((self.text / "made").glob("*.xz"))]
        return read, bundle_files(self.out / "teacher" / "model")

    def make_distilled(self) -> Record:
        with ThreadPoolExecutor(
            self.jobs
        ) as pool:  # one process does not keep a GPU busy while it reads and writes text
            list(pool.map(self.distill, DISTILLED))
        names = [f"distilled/{name.replace('/', '-')}" for name in DISTILLED]
        read = [path for name in DISTILLED for path in self.files(name, ".xz")]
        return read, [path for name in names for path in self.files(name)]

    def distill(self, name: str) -> None:
        made = f"distilled/{name.replace('/', '-')}"
        if not all(path.exists() for path in self.files(made)):
            model = self.out / "teacher"
            call_regard(
                "augment", "--distill", "-m", model, "-i", self.both(name, ".xz"), "-o", self.both(made), "--resume"
            )

    def make_noise(self) -> Record:
        read, written = [], []
        for name in (name.replace("/", "-") for name in DISTILLED if name not in NO_NOISE):
            made, noised = f"distilled/{name}", f"noised/{name}"
            call_regard("augment", "--noise", "-i", self.both(made), "-o", self.both(noised), "--resume")
            read += self.files(made)
            written += self.files(noised)
        return read, written

    def make_student(self) -> Record:
        recipe = RECIPES / "student.toml"
        self.train(recipe, "student", self.student_options)
        read = [path for folder in ("distilled", "noised", "made") for path in (self.text / folder).iterdir()]
        return [recipe, *read], bundle_files(self.out / "student" / "model")

    def make_int8(self) -> Record:
        small = self.out / self.pair
        if not small.exists():
            call_regard("export", "--to", "bundle", "--weights", "int8", "-m", self.out / "student", "-o", small)
        return bundle_files(self.out / "student" / "model"), bundle_files(small)

    def make_scores(self) -> Record:
        models = {"teacher": self.out / "teacher", "student": self.out / "student", "int8": self.out / self.pair}
        written = []
        for name, model in models.items():
            for test in TEST_SETS:
                source, reference = (self.data / f"{test}.{code}.xz" for code in (self.source, self.target))
                if source.exists():
                    path = self.out / "scores" / f"{name}-{test.replace('/', '-')}.json"
                    arguments = ("evaluate", "-m", model, "--source", source, "--reference", reference, "--json")
                    written.append(output_of(path, "-m", "regard", *arguments))
            path = self.out / "scores" / f"checks-{name}.json"
            written.append(output_of(path, "-m", "benchmarks.checks", "-m", model, "--json"))
        return [], written

    def make_card(self) -> Record:
        run(HERE / "builtin_card.py", self.out / self.pair, self.out / "scores")
        return sorted((self.out / "scores").iterdir()), bundle_files(self.out / self.pair)

    def train(self, recipe: Path, name: str, options: Sequence[str]) -> None:
        if not (self.out / name / "model").exists():
            languages = [f"data.source={self.source}", f"data.target={self.target}", f"data.root={self.text}"]
            sets = [argument for value in languages for argument in ("--set", value)]
            call_regard("train", recipe, *sets, "--out", self.out / name, "--resume", *options)

    def inputs(self, patterns: Sequence[str]) -> list[Path]:
        return [
            path
            for pattern in patterns
            for code in ("en", "de")
            for path in sorted(self.data.glob(f"{pattern}.{code}.xz"))
        ]


STAGES: dict[str, Callable[[Making], Record]] = {
    "text": Making.make_text,
    "back": Making.make_back,
    "teacher": Making.make_teacher,
    "distill": Making.make_distilled,
    "noise": Making.make_noise,
    "student": Making.make_student,
    "int8": Making.make_int8,
    "scores": Making.make_scores,
    "card": Making.make_card,
}


def bundle_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def run(*arguments: str | Path) -> None:
    print("$ python", shlex.join(map(str, arguments)), flush=True)
    subprocess.run([sys.executable, *map(str, arguments)], check=True, cwd=HERE.parent)


def call_regard(*arguments: str | Path) -> None:
    run("-m", "regard", *arguments)


def output_of(path: Path, *arguments: str | Path) -> Path:
    """The file with what a command prints; it is not run again where the file is there."""
    if not path.exists():
        print("$ python", shlex.join(map(str, arguments)), flush=True)
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], check=True, cwd=HERE.parent, stdout=subprocess.PIPE
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, done.stdout)
    return path


def link_data(making: Making) -> None:
    """The folders of DATA beside what is made, so that one data.root holds all."""
    making.text.mkdir(parents=True, exist_ok=True)
    for folder in sorted(path for path in making.data.iterdir() if path.is_dir()):
        link = making.text / folder.name
        if not link.exists():
            link.symlink_to(folder)


def run_stages(making: Making, until: str) -> None:
    listed = making.out / "stages.json"
    finished = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    for name, stage in STAGES.items():
        if name not in finished and (name != "back" or making.reverse):
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
    parser.add_argument("source", choices=("en", "de"))
    parser.add_argument("target", choices=("en", "de"))
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--until", choices=tuple(STAGES), default="card", help="the last stage to run (default: card)")
    parser.add_argument("--reverse", default="", metavar="MODEL", help="of the other direction, for back-translation")
    parser.add_argument(
        "--jobs", type=int, default=1, help="corpora that the teacher translates at a time (default: 1)"
    )
    parser.add_argument("--teacher", default="", metavar="OPTIONS", help='for its training: "--set train.minutes=60"')
    parser.add_argument("--student", default="", metavar="OPTIONS", help="likewise")
    arguments = parser.parse_args()
    making = Making(
        arguments.source,
        arguments.target,
        arguments.data.resolve(),
        arguments.out.resolve(),
        arguments.jobs,
        arguments.reverse,
        shlex.split(arguments.teacher),
        shlex.split(arguments.student),
    )
    link_data(making)
    run_stages(making, arguments.until)


if __name__ == "__main__":
    main()
