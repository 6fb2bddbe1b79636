"""From text to token ids: the corpora, held-out pairs, tokenizer and store of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus, Pair, resolve, resolve_all
from regard.data.split import HeldOut, hold_out
from regard.data.store import Store, add_checksums, prepare_store, store_key
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.files import write_atomic
from regard.progress import counted, progress
from regard.recipe import Recipe
from regard.training.display import Display
from regard.training.fine_tuning import tokenizer_from_init
from regard.training.folder import RunFolder
from regard.translation.languages import is_in_other, language_name
from regard.translation.protect import encode_pairs

LANGUAGE_LINES = 100  # of a corpus, to tell whether its languages are swapped


@dataclass(frozen=True)
class PreparedData:
    """Tokenized training text, and the pairs to validate and test on, which only the first process has."""

    tokenizer: Tokenizer
    store: Store
    valid: list[Pair] | None
    test: list[Pair]


def load_prepared(folder: RunFolder) -> PreparedData:
    """What the first process has prepared, for the others."""
    if not (folder.store / "store.json").is_file():
        raise RegardError(
            f"{folder.store}: not found; the run folder must be on a file system that all machines of the run share"
        )
    return PreparedData(Tokenizer.load(folder.tokenizer), Store.open(folder.store), None, [])


def find_corpora(recipe: Recipe) -> list[Corpus]:
    """The training corpora. Checks every file that the recipe names, before a run folder is made."""
    data = recipe.data
    root = Path(data.root)
    for name, spec in (("valid", data.valid), ("test", data.test)):
        if isinstance(spec, str):
            with _named(f"data.{name}"):
                resolve(spec, root, data.source, data.target)
    found = []
    for number, entry in enumerate(data.train, 1):
        with _named("data.train" if len(data.train) == 1 else f"data.train, corpus {number}"):
            found += resolve_all(entry.path, root, data.source, data.target, entry.weight)
    return found


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Errors in the block name this field of the recipe."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{field}: {error}") from None


def make_evaluation_sets(
    recipe: Recipe, corpora: list[Corpus], folder: RunFolder, display: Display
) -> tuple[HeldOut | None, list[Pair], list[Pair]]:
    """Validation and test pairs; those held out from the training text are written to the run folder."""
    held_out, valid, test = choose_evaluation_sets(recipe, corpora, display.say)
    for name, chosen in (("valid", held_out.valid), ("test", held_out.test)) if held_out else ():
        for side, language in enumerate((recipe.data.source, recipe.data.target)):
            if chosen:
                folder.held_out.mkdir(exist_ok=True)
                text = "".join(f"{pair[side]}\n" for pair in chosen)
                write_atomic(folder.held_out / f"{name}.{language}", text)
    return held_out, valid, test


def choose_evaluation_sets(
    recipe: Recipe, corpora: list[Corpus], say: Callable[[str], None]
) -> tuple[HeldOut | None, list[Pair], list[Pair]]:
    """Validation and test pairs, read from files or held out from the training text; writes nothing."""
    data = recipe.data
    num_valid = data.valid if isinstance(data.valid, int) else 0
    num_test = data.test if isinstance(data.test, int) else 0
    # Files first: reading them is quick, so a mistake shows at once.
    valid = [] if num_valid else _read_pairs(str(data.valid), recipe, say)
    test = [] if num_test or not data.test else _read_pairs(str(data.test), recipe, say)
    if not num_valid and not valid:
        raise UserError(f"data.valid must hold at least one pair, but {data.valid} is empty")
    held_out = None
    if num_valid or num_test:
        pairs = chain.from_iterable(corpus.pairs() for corpus in corpora)
        stripped = ((src.strip(), tgt.strip()) for src, tgt in pairs)
        held_out = hold_out(stripped, num_valid, num_test, recipe.train.seed)
        for name, chosen, wanted in (("valid", held_out.valid, num_valid), ("test", held_out.test, num_test)):
            if len(chosen) < wanted:
                say(
                    f"data.{name}: held out {counted(len(chosen), 'pair')}, not {wanted:,}: at most a tenth of the text is held out"
                )
        valid, test = held_out.valid if num_valid else valid, held_out.test if num_test else test
    return held_out, valid, test


def _read_pairs(spec: str, recipe: Recipe, say: Callable[[str], None]) -> list[Pair]:
    corpus = resolve(spec, Path(recipe.data.root), recipe.data.source, recipe.data.target)
    return [(src.strip(), tgt.strip()) for src, tgt in corpus.pairs(say)]


def language_notes(recipe: Recipe, corpora: Sequence[Corpus]) -> list[str]:
    """A note for each corpus with a side that is in the language of the other: the two may have been swapped."""
    languages, notes = (recipe.data.source, recipe.data.target), []
    for corpus in corpora:
        sample = list(islice(corpus.pairs(), LANGUAGE_LINES))
        faults = [
            f"the {name} side looks like {language_name(languages[1 - side])}, not {language_name(languages[side])}"
            for side, name in enumerate(("source", "target"))
            if is_in_other([pair[side] for pair in sample], languages[side], languages[1 - side])
        ]
        if faults:
            notes.append(f"{corpus.name}: {' and '.join(faults)}; if the two are swapped, stop and exchange them")
    return notes


def make_tokenizer(
    recipe: Recipe, corpora: list[Corpus], held_out: HeldOut | None, folder: RunFolder, display: Display
) -> Tokenizer:
    """The run folder's tokenizer; made first if it is not there: from the init model's, or trained on the training text."""
    if (folder.tokenizer / "tokenizer.json").is_file():
        try:
            return Tokenizer.load(folder.tokenizer)
        except UserError as error:
            raise UserError(f"{error}; delete {folder.tokenizer} and resume, and it is made anew") from None
    if recipe.train.init:
        tokenizer = tokenizer_from_init(recipe, lambda: _training_lines(corpora, held_out, lambda _: None), display.say)
        tokenizer.save(folder.tokenizer)
        return tokenizer
    wanted = recipe.tokenizer
    if wanted.folder:
        tokenizer = load_vocabulary(recipe)
        tokenizer.save(folder.tokenizer)
        display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces, from {wanted.folder}")
        return tokenizer
    with progress("learning the vocabulary", None) as done:
        tokenizer = Tokenizer.train(
            _training_lines(corpora, held_out, done),
            wanted.vocab_size,
            folder.tokenizer,
            character_coverage=wanted.character_coverage,
            split_digits=wanted.split_digits,
            protects=bool(wanted.protect),
            seed=recipe.train.seed,
        )
    changed = f" ({wanted.vocab_size:,} requested)" if tokenizer.vocab_size != wanted.vocab_size else ""
    display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces{changed}")
    return tokenizer


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


def _training_lines(corpora: list[Corpus], held_out: HeldOut | None, done: Callable[[int], None]) -> Iterator[str]:
    for corpus in corpora:
        for number, pair in enumerate(corpus.pairs(), 1):
            if held_out is None or not held_out.is_held_out(*pair):
                yield from pair
            if number % 1000 == 0:
                done(1000)


def make_store(
    recipe: Recipe,
    corpora: list[Corpus],
    held_out: HeldOut | None,
    tokenizer: Tokenizer,
    folder: RunFolder,
    display: Display,
) -> Store:
    """The run folder's token store; made first unless a store of the same text, tokenizer and cleaning is there."""
    clean = CleanOptions(recipe.data.max_length, recipe.data.max_ratio, recipe.data.deduplicate)
    if (folder.store / "store.json").is_file():
        store = Store.open(folder.store)
        if store.key == store_key(corpora, tokenizer, clean, held_out):
            return store if store.content else _with_checksums(folder, tokenizer, display)
    seen, notes = 0, list[str]()

    with progress("tokenizing", None, "pairs") as done:

        def advance(read: int) -> None:
            nonlocal seen
            done(read - seen)
            seen = read

        store, account = prepare_store(
            folder.store,
            corpora,
            tokenizer,
            clean,
            encode_pairs,
            held_out=held_out,
            workers=recipe.train.workers,
            progress=advance,
            note=notes.append,
        )
    display.say("\n".join([*account.lines(), *notes]))
    return store


def _with_checksums(folder: RunFolder, tokenizer: Tokenizer, display: Display) -> Store:
    """The store of an earlier version of Regard, which wrote none."""
    display.say(
        f"{folder.store}: has no checksums, since an earlier version of Regard wrote it; they are added now, and damage from now "
        "on is found (delete the folder to have it made anew)"
    )
    return add_checksums(folder.store, tokenizer.vocab_size)
