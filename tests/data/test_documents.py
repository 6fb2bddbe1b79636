"""Text as documents: files, paragraphs, lines and .jsonl, in pieces whose ids end to end are those of the document."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.data.documents as documents_module
import regard.data.store as store_module
from regard.data.clean import CleanOptions
from regard.data.corpus import Record
from regard.data.documents import TextCorpus, encode_documents, find_texts, whole_documents
from regard.data.split import HeldOut
from regard.data.store import Store, prepare_store
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

TEXT = "\n\nThe dog sees the house.\nIt wants 12 trees.\n\n  My sister likes a café.\n\n\nA child\nfinds it.  \n \n"
LONG = CleanOptions(max_length=1 << 40)


def corpus_of(tmp_path: Path, text: str, unit: str, name: str = "a.txt") -> TextCorpus:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return TextCorpus(name, (path,), unit)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            "file",
            [
                "The dog sees the house.\nIt wants 12 trees.\n\n  My sister likes a café.\n\n\nA child\nfinds it.  ",
            ],
        ),
        (
            "paragraph",
            ["The dog sees the house.\nIt wants 12 trees.", "  My sister likes a café.", "A child\nfinds it.  "],
        ),
        ("line", ["The dog sees the house.", "It wants 12 trees.", "My sister likes a café.", "A child", "finds it."]),
    ],
)
def test_a_document_is_a_file_a_paragraph_or_a_line(tmp_path: Path, unit: str, expected: list[str]) -> None:
    corpus = corpus_of(tmp_path, TEXT, unit)
    assert list(whole_documents(corpus)) == expected
    assert all(record.begins and record.ends for record in corpus.records())
    assert next(record.number for record in corpus.records()) == 3
    assert list(whole_documents(corpus_of(tmp_path, TEXT.replace("\n", "\r\n"), unit))) == expected
    assert list(whole_documents(corpus_of(tmp_path, " \n\n\t\n", unit))) == []


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.text(alphabet="ab .é\u3000日\u2581", max_size=12), max_size=30),
    st.sampled_from(["file", "paragraph"]),
    st.integers(8, 60),
)
def test_pieces_of_any_size_are_the_text(
    tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory, lines: list[str], unit: str, piece: int
) -> None:
    corpus = corpus_of(tmp_path_factory.mktemp("text"), "\n".join(lines), unit)
    expected = list(whole_documents(corpus))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "PIECE", piece)
        records = list(corpus.records())
        assert list(whole_documents(corpus)) == expected
    assert sum(record.begins for record in records) == sum(record.ends for record in records) == len(expected)
    for before, after in itertools.pairwise(records):
        assert before.ends == after.begins


def test_the_ids_of_pieces_are_those_of_the_document(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(f"The dog sees {n} trees.\n\nA child likes a café, and 12 houses" for n in range(60))
    corpus = corpus_of(tmp_path, text, "file")
    monkeypatch.setattr(documents_module, "PIECE", 200)
    records = list(corpus.records())
    assert len(records) > 10
    [ids] = encode_documents(tokenizer, records)
    assert [token for piece in ids for token in piece] == tokenizer.encode(text)
    # The check above can fail: as documents of their own, pieces have other ids.
    [alone] = encode_documents(tokenizer, [Record(record.number, record.texts) for record in records])
    assert [token for piece in alone for token in piece] != tokenizer.encode(text)


def test_a_piece_is_never_much_longer_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "PIECE", 400)
    words = corpus_of(tmp_path, "word and another\n" * 500, "file")
    assert max(len(record.texts[0]) for record in words.records()) < 500
    unspaced = corpus_of(tmp_path, "日本語です。\n" * 500, "file", "b.txt")  # no spaces: cut at the ends of lines
    assert max(len(record.texts[0]) for record in unspaced.records()) < 500
    assert "".join(record.texts[0] for record in unspaced.records()) == "日本語です。\n" * 499 + "日本語です。"


def test_json_lines_are_documents_whatever_the_unit(tmp_path: Path) -> None:
    rows = [{"text": "One\n\ntwo"}, {"id": 7, "text": "  three "}, {"text": " "}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + "\n"
    for unit in ("file", "paragraph", "line"):
        assert list(whole_documents(corpus_of(tmp_path, text, unit, "a.jsonl"))) == ["One\n\ntwo", "three"]


@pytest.mark.parametrize("line", ['{"txt": "a"}', "[1]", "not json", '{"text": 3}', "[" * 10_000])
def test_a_line_that_is_no_document_is_refused_by_number(tmp_path: Path, line: str) -> None:
    corpus = corpus_of(tmp_path, f'{{"text": "a"}}\n{line}\n', "file", "a.jsonl")
    with pytest.raises(UserError, match=r'a\.jsonl, line 2: must be a JSON object with a text, \{"text": "\.\.\."\}'):
        list(corpus.records())


def test_patterns_name_files_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "books" / "more").mkdir(parents=True)
    (tmp_path / "books" / "b.txt").write_text("two")
    (tmp_path / "books" / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "books" / "more" / "c.txt.xz").write_bytes(lzma.compress(b"three"))
    assert list(whole_documents(find_texts("books/*.txt*", tmp_path, "file"))) == ["one", "two"]
    assert list(whole_documents(find_texts("books/**/*.txt*", tmp_path, "file"))) == ["one", "two", "three"]
    assert find_texts("books/b.txt", tmp_path, "line", 2.0) == TextCorpus(
        "books/b.txt", (tmp_path / "books" / "b.txt",), "line", 2.0
    )
    (tmp_path / "what?.txt").write_text("a file of that name")
    assert list(whole_documents(find_texts("what?.txt", tmp_path, "file"))) == ["a file of that name"]
    for spec, message in (
        ("no/*.txt", "must match at least one file, but matches none"),
        ("none.txt", "there is no such file"),
        ("books", "must be a file, but is a folder"),
        (" ", "its name is empty"),
    ):
        with pytest.raises(UserError, match=message):
            find_texts(spec, tmp_path, "file")


# --- in the store ---


def decoded(store: Store, tokenizer: Tokenizer) -> list[str]:
    ids, offsets = store["text"].ids.tolist(), store["text"].offsets.tolist()
    return [tokenizer.decode(ids[begin:end]) for begin, end in itertools.pairwise(offsets)]


def test_processes_write_the_same_store_as_one_with_documents_in_one_piece(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paragraphs = [f"The dog sees {n} trees.\nMy sister wants {n} houses " + "and a café " * n for n in range(40)]
    (tmp_path / "a.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "b.txt").write_text("The child finds it.")
    corpora = [
        TextCorpus("a.txt", (tmp_path / "a.txt",), "paragraph"),
        TextCorpus("b.txt", (tmp_path / "b.txt",), "paragraph", 2.5),
    ]
    whole, _ = prepare_store(tmp_path / "whole", corpora, tokenizer, LONG, encode_documents, workers=1)
    monkeypatch.setattr(documents_module, "PIECE", 100)
    monkeypatch.setattr(store_module, "CHUNK_RECORDS", 7)
    monkeypatch.setattr(store_module, "INLINE_CHUNKS", 1)
    seen: list[int] = []
    for name, workers in (("one", 1), ("two", 2)):
        store, account = prepare_store(
            tmp_path / name, corpora, tokenizer, LONG, encode_documents, workers=workers, progress=seen.append
        )
        assert account.read == account.kept == len(store) == 41
        assert decoded(store, tokenizer) == [*paragraphs, "The child finds it."]
        assert store.corpora == [("a.txt", 1.0, 0, 40), ("b.txt", 2.5, 40, 41)]
        np.testing.assert_array_equal(store["text"].offsets, whole["text"].offsets)
        assert store.content == whole.content
    assert seen[-1] == 41
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert (tmp_path / "one" / "text.ids").read_bytes() == (tmp_path / "whole" / "text.ids").read_bytes()


def test_held_out_documents_are_dropped(tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "one dog\ntwo dogs\nthree dogs\nTWO dogs.\n", "line")
    store, account = prepare_store(
        tmp_path / "store", [corpus], tokenizer, LONG, encode_documents, held_out=HeldOut(valid=[("two dogs",)])
    )
    assert decoded(store, tokenizer) == ["one dog", "three dogs"]
    assert account.lines("document") == [
        "4 documents read, 2 kept (50.0%)",
        "  dropped, held out: 2, first a.txt, line 2: 'two dogs'",
    ]


def test_a_text_without_documents_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no document is left after cleaning: 0 documents read"):
        prepare_store(tmp_path / "store", [corpus_of(tmp_path, "\n \n", "file")], tokenizer, LONG, encode_documents)
