"""From a recipe to token ids: corpora, held-out pairs, vocabulary and store of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus, Pair, resolve, resolve_all
from regard.data.split import HeldOut, hold_out
from regard.data.store import Store, prepare, store_key
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.files import write_atomic
from regard.progress import progress
from regard.recipe import Recipe
from regard.training.display import Display
from regard.training.fine_tuning import tokenizer_from_init
from regard.training.folder import RunFolder
from regard.translation.protect import encode_pairs


def find_corpora(recipe: Recipe) -> list[Corpus]:
    """The training corpora, after a look at every file that the recipe names: a mistake must not cost a run folder."""
    data = recipe.data
    root = Path(data.root)
    for spec in (data.valid, data.test):
        if isinstance(spec, str):
            resolve(spec, root, data.source, data.target)
    found = [resolve_all(entry.path, root, data.source, data.target, entry.weight) for entry in data.train]
    return list(chain.from_iterable(found))


def make_evaluation_sets(
    recipe: Recipe, corpora: list[Corpus], folder: RunFolder, display: Display
) -> tuple[HeldOut | None, list[Pair], list[Pair]]:
    """Validation and test pairs, from the files that the recipe names or held out from the training text."""
    data = recipe.data
    num_valid = data.valid if isinstance(data.valid, int) else 0
    num_test = data.test if isinstance(data.test, int) else 0
    # Those that have files of their own are read first: that is quick, and a mistake in them is said at once.
    valid = [] if num_valid else _read_pairs(str(data.valid), recipe)
    test = [] if num_test or not data.test else _read_pairs(str(data.test), recipe)
    if not num_valid and not valid:
        raise UserError("data.valid: holds no pairs")
    held_out = None
    if num_valid or num_test:
        pairs = chain.from_iterable(corpus.pairs() for corpus in corpora)
        stripped = ((src.strip(), tgt.strip()) for src, tgt in pairs)
        held_out = hold_out(stripped, num_valid, num_test, recipe.train.seed)
        for name, chosen, wanted in (("valid", held_out.valid, num_valid), ("test", held_out.test, num_test)):
            if len(chosen) < wanted:
                display.say(
                    f"data.{name}: {len(chosen):,} pairs are held out, not {wanted:,}: at most a tenth of the text is"
                )
            for side, language in enumerate((data.source, data.target)):
                text = "".join(f"{pair[side]}\n" for pair in chosen)
                if text:
                    folder.held_out.mkdir(exist_ok=True)
                    write_atomic(folder.held_out / f"{name}.{language}", text)
        valid, test = held_out.valid if num_valid else valid, held_out.test if num_test else test
    return held_out, valid, test


def _read_pairs(spec: str, recipe: Recipe) -> list[Pair]:
    corpus = resolve(spec, Path(recipe.data.root), recipe.data.source, recipe.data.target)
    return [(src.strip(), tgt.strip()) for src, tgt in corpus.pairs()]


def make_tokenizer(
    recipe: Recipe, corpora: list[Corpus], held_out: HeldOut | None, folder: RunFolder, display: Display
) -> Tokenizer:
    if (folder.tokenizer / "tokenizer.json").is_file():
        return Tokenizer.load(folder.tokenizer)
    wish = recipe.tokenizer
    if recipe.train.init:
        tokenizer = tokenizer_from_init(recipe, lambda: _training_lines(corpora, held_out, lambda _: None), display.say)
        tokenizer.save(folder.tokenizer)
        return tokenizer
    with progress("learning the vocabulary", None) as done:
        tokenizer = Tokenizer.train(
            _training_lines(corpora, held_out, done),
            wish.vocab_size,
            folder.tokenizer,
            character_coverage=wish.character_coverage,
            split_digits=wish.split_digits,
            protects=bool(wish.protect),
            seed=recipe.train.seed,
        )
    changed = f" ({wish.vocab_size:,} were asked for)" if tokenizer.vocab_size != wish.vocab_size else ""
    display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces{changed}")
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
    clean = CleanOptions(recipe.data.max_length, recipe.data.max_ratio, recipe.data.deduplicate)
    if (folder.store / "store.json").is_file():
        store = Store.open(folder.store)
        if store.key == store_key(corpora, tokenizer, clean, held_out):
            return store
    seen = 0

    with progress("tokenizing", None, "pairs") as done:

        def advance(read: int) -> None:
            nonlocal seen
            done(read - seen)
            seen = read

        store, account = prepare(
            folder.store,
            corpora,
            tokenizer,
            clean,
            encode_pairs,
            held_out=held_out,
            workers=recipe.train.workers,
            progress=advance,
        )
    display.say("\n".join(account.lines()))
    return store
