"""The text side of the tasks `generate` and `fill`: finding, reading and holding out documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from regard.data.clean import CleanOptions
from regard.data.corpus import RecordSource, Texts
from regard.data.documents import (
    ChatCorpus,
    TextCorpus,
    document_ends,
    document_lengths,
    find_texts,
    is_jsonl,
    whole_documents,
)
from regard.data.split import HeldOut, sentence_key
from regard.data.split import hold_out as choose_held_out
from regard.data.store import Column
from regard.errors import UserError
from regard.files import write_atomic
from regard.progress import counted
from regard.recipe import Recipe
from regard.tasks.counting import PIECES_PER_WORD, count_words
from regard.tasks.task import Say

NOUN = TextCorpus.noun
COLUMNS = TextCorpus.columns
HELD_OUT = "{name}.jsonl"
BLOCK = 250  # characters per sample for the vocabulary: several lines, so that it sees what surrounds line ends
OPENING = 1000  # letters at the start of a file, in which most files differ
NO_LIMIT = 1 << 62  # tokens of a document: it is cut into rows or pieces later


def describe(recipe: Recipe) -> str:
    return "a masked language model"


def find_corpora(spec: str, recipe: Recipe, weight: float) -> list[RecordSource]:
    corpus = find_texts(spec, Path(recipe.data.root), recipe.data.documents, weight)
    if isinstance(corpus, ChatCorpus) and not recipe.train.init:
        raise UserError(f"{spec}: conversations need train.init, a model with a chat template to fine-tune")
    return [corpus]


def find_corpus(spec: str, recipe: Recipe) -> TextCorpus:
    return find_texts(spec, Path(recipe.data.root), recipe.data.documents)


def read(corpus: RecordSource, note: Say = lambda text: None) -> Iterator[Texts]:
    """Whole documents, or conversations."""
    if isinstance(corpus, ChatCorpus):
        return (record.texts for record in corpus.records())
    return ((document,) for document in whole_documents(corpus))


def hold_out(
    corpora: Sequence[RecordSource],
    num_valid: int | float,
    num_test: int | float,
    seed: int,
    note: Say = lambda text: None,
) -> tuple[HeldOut, list[RecordSource]]:
    """Hold out whole files where each is a document, and leave copies of them out; otherwise documents by their text. A share is
    cut off the end of every document."""
    if isinstance(num_valid, float) or isinstance(num_test, float):
        return _hold_out_shares(corpora, float(num_valid), float(num_test))
    files = [path for corpus in corpora for path in corpus.files]
    if any(corpus.unit != "file" for corpus in corpora) or any(map(is_jsonl, files)):
        records = chain.from_iterable(corpus.records() for corpus in corpora)
        whole = (record.texts for record in records if record.begins and record.ends)
        return choose_held_out(whole, int(num_valid), int(num_test), seed, NOUN), list(corpora)
    copies = {same[0]: same for same in _by_text(files)}
    smaller = ", or set data.documents to paragraph or line"
    names = choose_held_out(((str(path),) for path in copies), int(num_valid), int(num_test), seed, NOUN, smaller)
    chosen = [Path(name) for [name] in (*names.valid, *names.test)]
    taken = {path for first in chosen for path in copies[first]}
    if more := len(taken) - len(chosen):
        note(f"data.train: left out {counted(more, 'file')} with the text of a held-out one")
    left = [
        replace(corpus, files=tuple(path for path in corpus.files if path not in taken))
        for corpus in corpora
        if isinstance(corpus, TextCorpus)
    ]
    sets = [
        [texts for [name] in part for texts in read(TextCorpus(name, (Path(name),)))]
        for part in (names.valid, names.test)
    ]
    valid, test = sets
    return HeldOut(valid, test), [corpus for corpus in left if corpus.files]


def _by_text(files: Sequence[Path]) -> list[list[Path]]:
    """The files that have text, grouped by equal text. Only files with the same opening are read to the end."""
    openings: dict[bytes, list[Path]] = {}
    for path in dict.fromkeys(files):
        if opening := _text_digest(path, OPENING):
            openings.setdefault(opening, []).append(path)
    groups: dict[bytes, list[Path]] = {}
    for opening, alike in openings.items():
        for path in alike:
            digest = _text_digest(path) if len(alike) > 1 else opening
            groups.setdefault(digest, []).append(path)
    return list(groups.values())


def _text_digest(path: Path, most: int = NO_LIMIT) -> bytes:
    """A hash of the first letters of a file, the same for texts that must be held out together; empty for a file without any."""
    digest, left = hashlib.blake2b(digest_size=16), most
    for record in TextCorpus(str(path), (path,)).records():
        letters = sentence_key(record.texts[0])[:left]
        digest.update(letters.encode("utf-8", "surrogatepass"))
        left -= len(letters)
        if not left:
            break
    return digest.digest() if left < most else b""


def _hold_out_shares(corpora: Sequence[RecordSource], valid: float, test: float) -> tuple[HeldOut, list[RecordSource]]:
    """Cut off the end of each document: a part for validation, then a part for testing."""
    held_out, left = HeldOut(), list[RecordSource]()
    for corpus in corpora:
        assert isinstance(corpus, TextCorpus)
        if isinstance(corpus, ChatCorpus):
            raise UserError(
                f"{corpus.name}: conversations are held out as a whole; set data.valid and data.test to whole numbers, not shares"
            )
        lengths = document_lengths(corpus)
        kept = tuple(int(length * (1 - test - valid)) for length in lengths)
        for end, length, start in zip(document_ends(corpus, kept), lengths, kept, strict=True):
            middle = int(length * (1 - test)) - start
            for part, text in ((held_out.valid, end[:middle]), (held_out.test, end[middle:])):
                if text.strip():
                    part.append((text,))
        left.append(replace(corpus, kept=kept))
    for name, share, part in (("valid", valid, held_out.valid), ("test", test, held_out.test)):
        if share and not part:
            raise UserError(f"data.{name}: the text is too short to hold out a share of {share:g}; use more text")
    return held_out, left


def write_held_out(folder: Path, name: str, records: Sequence[Texts], recipe: Recipe) -> None:
    """Write a .jsonl file, since documents have line breaks."""
    contents = ({"text": texts[0]} if len(texts) == 1 else {"messages": json.loads(texts[0])} for texts in records)
    lines = (json.dumps(content, ensure_ascii=False) + "\n" for content in contents)
    write_atomic(folder / HELD_OUT.format(name=name), "".join(lines))


def vocabulary_lines(
    corpora: Sequence[RecordSource], held_out: HeldOut | None, done: Callable[[int], None]
) -> Iterator[str]:
    """Blocks of a few lines."""
    for corpus in corpora:
        for record in corpus.records():
            if held_out is not None and record.begins and record.ends and held_out.is_held_out(*record.texts):
                continue
            yield from _blocks(record.texts[0])
            done(int(record.begins))


def _blocks(text: str) -> Iterator[str]:
    """The lines of a text, put together until they have BLOCK characters."""
    block = ""
    for line in text.splitlines(keepends=True):
        block += line
        if len(block) >= BLOCK:
            yield block
            block = ""
    if block:
        yield block


def clean_options(recipe: Recipe) -> CleanOptions:
    return CleanOptions(max_length=NO_LIMIT)


def doubts(recipe: Recipe, corpora: Sequence[RecordSource]) -> list[str]:
    return []


def too_little(recipe: Recipe, num_records: float) -> str | None:
    """The number of documents says nothing about the amount of text."""
    return None


def count(corpus: RecordSource, recipe: Recipe, note: Say) -> tuple[int, int]:
    records, words = count_words(corpus, note)
    if recipe.tokenizer.unit == "character":
        return records, records + sum(len(record.texts[0]) for record in corpus.records())
    return records, records + int(words * PIECES_PER_WORD)


def made_up_column(vocab_size: int, number: int, length: int) -> Column:
    """Documents of random ids, of this length."""
    ids = np.random.default_rng(0).integers(vocab_size, size=number * length)
    return Column(ids, np.arange(number + 1) * length)
