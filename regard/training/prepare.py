"""From text to token ids: the corpora, held-out records, tokenizer and store of a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from regard.data.corpus import RecordSource, Texts
from regard.data.split import HeldOut
from regard.data.store import Store, add_checksums, prepare_store, store_key
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.files import atomic_folder, read_json, write_atomic
from regard.progress import counted, duration, progress
from regard.recipe import CorpusEntry, Recipe, load_recipe
from regard.tasks import TASKS
from regard.training.display import Display
from regard.training.fine_tuning import tokenizer_from_init
from regard.training.folder import RunFolder


@dataclass(frozen=True)
class PreparedData:
    """Tokenized training text, and the records to validate and test on, which only the first process has."""

    tokenizer: Tokenizer
    store: Store
    valid: list[Texts] | None
    test: list[Texts]
    baseline: Mapping[str, Any] = field(default_factory=dict)  # of the task, as JSON; empty: none


@dataclass(frozen=True)
class EvaluationSets:
    """The records to validate and test on, and what is left to train on."""

    corpora: list[RecordSource]
    held_out: HeldOut | None  # what training must not see, if it was held out from the training text
    valid: list[Texts]
    test: list[Texts]


def load_prepared(folder: RunFolder) -> PreparedData:
    """What the first process has prepared, for the others."""
    if not (folder.store / "store.json").is_file():
        raise RegardError(
            f"{folder.store}: not found; the run folder must be on a file system that all machines of the run share"
        )
    return PreparedData(Tokenizer.load(folder.tokenizer), Store.open(folder.store), None, [])


def adopt_prepared(recipe: Recipe, folder: RunFolder, other: RunFolder) -> None:
    """Take the vocabulary and the token ids of another run of the same text into a run folder that has none yet. Files are linked
    where the disk allows it."""
    theirs = load_recipe(other.recipe)
    if (theirs.task, theirs.data, theirs.tokenizer) != (recipe.task, recipe.data, recipe.tokenizer):
        raise UserError(
            f"{other.path}: must be a run of the same [data] and [tokenizer] to share its text, but is not; name another, or "
            "delete it"
        )
    for mine, source, last in (
        (folder.tokenizer, other.tokenizer, "tokenizer.json"),
        (folder.store, other.store, "store.json"),
    ):
        if not (mine / last).is_file():
            with atomic_folder(mine) as temporary:
                shutil.copytree(source, temporary, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def find_corpora(recipe: Recipe) -> list[RecordSource]:
    """The training corpora. Checks every file that the recipe names, before a run folder is made."""
    data, task = recipe.data, TASKS[recipe.task]
    for name, spec in (("valid", data.valid), ("test", data.test)):
        with _named(f"data.{name}"):
            find_evaluation_corpora(spec, recipe)
    found = []
    for number, entry in enumerate(data.train, 1):
        with _named("data.train" if len(data.train) == 1 else f"data.train, corpus {number}"):
            found += task.find_corpora(entry.path, recipe.of_entry(entry), entry.weight)
    return found


def find_evaluation_corpora(spec: str | float | Sequence[CorpusEntry], recipe: Recipe) -> list[RecordSource]:
    """The corpora that `data.valid` or `data.test` names; none for a number of records to hold out."""
    if isinstance(spec, int | float) or not spec:
        return []
    entries = [CorpusEntry(spec)] if isinstance(spec, str) else spec
    return [TASKS[recipe.task].find_corpus(entry.path, recipe.of_entry(entry)) for entry in entries]


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Errors in the block name this field of the recipe."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{field}: {error}") from None


def make_evaluation_sets(
    recipe: Recipe, corpora: Sequence[RecordSource], folder: RunFolder, display: Display
) -> EvaluationSets:
    """Validation and test records; those held out from the training text are written to the run folder."""
    sets = choose_evaluation_sets(recipe, corpora, display.say)
    held_out = sets.held_out
    for name, chosen in (("valid", held_out.valid), ("test", held_out.test)) if held_out else ():
        if chosen:
            folder.held_out.mkdir(exist_ok=True)
            TASKS[recipe.task].write_held_out(folder.held_out, name, chosen, recipe)
    return sets


def choose_evaluation_sets(
    recipe: Recipe, corpora: Sequence[RecordSource], say: Callable[[str], None]
) -> EvaluationSets:
    """Validation and test records, read from files or held out from the training text; writes nothing."""
    data, task = recipe.data, TASKS[recipe.task]
    num_valid, num_test = (spec if isinstance(spec, int | float) else 0 for spec in (data.valid, data.test))
    # Files first: reading them is quick, so a mistake shows at once.
    valid, test = (
        [texts for corpus in find_evaluation_corpora(spec, recipe) for texts in task.read(corpus, say)]
        for spec in (data.valid, data.test)
    )
    for name, spec, records in (("valid", data.valid, valid), ("test", data.test, test)):
        if isinstance(spec, str | tuple) and (spec or name == "valid") and not records:
            named = spec if isinstance(spec, str) else ", ".join(entry.path for entry in spec)
            raise UserError(f"data.{name} must have at least one {task.NOUN}, but {named} has none; name another file")
    if not (num_valid or num_test):
        return EvaluationSets(list(corpora), None, valid, test)
    held_out, left = task.hold_out(corpora, num_valid, num_test, recipe.train.seed, say)
    for name, chosen, wanted in (("valid", held_out.valid, num_valid), ("test", held_out.test, num_test)):
        if isinstance(wanted, int) and len(chosen) < wanted:
            say(
                f"data.{name}: held out {counted(len(chosen), task.NOUN)}, not {wanted:,}: at most a tenth of the text is held out"
            )
    return EvaluationSets(left, held_out, held_out.valid if num_valid else valid, held_out.test if num_test else test)


def split_line(recipe: Recipe, num_train: int, sets: EvaluationSets) -> str | None:
    """What the records are for; only of tasks with labels, where each is held out as a whole."""
    if not recipe.settings.has_labels:
        return None
    test = f", {len(sets.test):,} to test on" if sets.test else ""
    return f"{counted(num_train, recipe.settings.noun)} to train on, {len(sets.valid):,} to validate on{test}"


def make_baseline(recipe: Recipe, sets: EvaluationSets, folder: RunFolder, display: Display) -> Mapping[str, Any]:
    """The task's simple model of the same data, as JSON; kept in the run folder, so that a resumed run need not train it again."""
    if folder.baseline.is_file():
        return read_json(folder.baseline)
    found = TASKS[recipe.task].baseline(recipe, sets.corpora, sets.held_out, sets.valid, sets.test)
    if found is None:
        return {}
    first = (found.test or found.valid).metrics[0]
    name = "test" if found.test else "validation"
    display.say(f"{found.name}: {first.name} {first.score:.2f} on the {name} set, trained in {duration(found.seconds)}")
    content = found.to_json()
    write_atomic(folder.baseline, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return content


def make_tokenizer(
    recipe: Recipe, corpora: Sequence[RecordSource], held_out: HeldOut | None, folder: RunFolder, display: Display
) -> Tokenizer:
    """The run folder's tokenizer; made first if it is not there: from the init model's, or trained on the training text."""
    if (folder.tokenizer / "tokenizer.json").is_file():
        try:
            return Tokenizer.load(folder.tokenizer)
        except UserError as error:
            raise UserError(f"{error}; delete {folder.tokenizer} and resume, and it is made anew") from None
    task = TASKS[recipe.task]
    if recipe.train.init:
        lines = partial(task.vocabulary_lines, corpora, held_out, lambda _: None)
        tokenizer = with_targets(tokenizer_from_init(recipe, lines, display.say), recipe)
        tokenizer.save(folder.tokenizer)
        return tokenizer
    wanted = recipe.tokenizer
    if wanted.folder:
        tokenizer = with_targets(load_vocabulary(recipe), recipe)
        tokenizer.save(folder.tokenizer)
        display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces, from {wanted.folder}")
        return tokenizer
    with progress("learning the vocabulary", None) as done:
        tokenizer = Tokenizer.train(
            task.vocabulary_lines(corpora, held_out, done),
            wanted.vocab_size,
            folder.tokenizer,
            character_coverage=wanted.character_coverage,
            split_digits=wanted.split_digits,
            characters=wanted.unit == "character",
            protects=bool(wanted.protect),
            seed=recipe.train.seed,
        )
    if recipe.has_tags:
        tokenizer = with_targets(tokenizer, recipe)
        tokenizer.save(folder.tokenizer)
    if wanted.unit == "character":
        display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces: characters, bytes and control symbols")
        return tokenizer
    changed = f" ({wanted.vocab_size:,} requested)" if tokenizer.vocab_size != wanted.vocab_size else ""
    display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces{changed}")
    return tokenizer


def with_targets(tokenizer: Tokenizer, recipe: Recipe) -> Tokenizer:
    """The vocabulary with a tag for each target language of the run, if sources are tagged."""
    return tokenizer.with_targets(target for _, target in recipe.data.directions) if recipe.has_tags else tokenizer


def load_vocabulary(recipe: Recipe) -> Tokenizer:
    """The vocabulary in `tokenizer.folder`."""
    wanted = recipe.tokenizer
    try:
        tokenizer = Tokenizer.load(Path(wanted.folder))
    except UserError as error:
        raise UserError(f"tokenizer.folder: {error}") from None
    if bool(wanted.protect) != tokenizer.protects:
        how = "with" if tokenizer.protects else "without"
        raise UserError(
            f"tokenizer.folder: {wanted.folder} was made {how} protected spans; set tokenizer.protect = "
            f"{'true' if tokenizer.protects else 'false'}"
        )
    return tokenizer


def make_store(
    recipe: Recipe,
    corpora: Sequence[RecordSource],
    held_out: HeldOut | None,
    tokenizer: Tokenizer,
    folder: RunFolder,
    display: Display,
) -> Store:
    """The run folder's token store; made first unless a store of the same text, tokenizer and cleaning is there."""
    task = TASKS[recipe.task]
    clean = task.clean_options(recipe)
    if (folder.store / "store.json").is_file():
        store = Store.open(folder.store)
        if store.key == store_key(corpora, tokenizer, clean, held_out):
            return store if store.content else _with_checksums(folder, tokenizer, display)
    seen, notes = 0, list[str]()

    with progress("tokenizing", None, f"{task.NOUN}s") as done:

        def advance(read: int) -> None:
            nonlocal seen
            done(read - seen)
            seen = read

        store, account = prepare_store(
            folder.store,
            corpora,
            tokenizer,
            clean,
            task.encode_records,
            held_out=held_out,
            workers=recipe.train.workers,
            progress=advance,
            note=notes.append,
        )
    display.say("\n".join([*account.lines(task.NOUN), *notes]))
    return store


def _with_checksums(folder: RunFolder, tokenizer: Tokenizer, display: Display) -> Store:
    """The store of an earlier version of Regard, which wrote none."""
    display.say(
        f"{folder.store}: has no checksums, since an earlier version of Regard wrote it; they are added now, and damage from now "
        "on is found (delete the folder to have it made anew)"
    )
    return add_checksums(folder.store, tokenizer.vocab_size)
