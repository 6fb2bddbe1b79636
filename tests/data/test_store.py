from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.data.store as store_module
from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus
from regard.data.encoding_workers import Chunk, ChunkEncoder, WorkerPool
from regard.data.pairs import gather
from regard.data.split import HeldOut
from regard.data.store import Store, prepare_store, store_in_memory, store_key
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError

Files = tuple[Path, Path]


@pytest.fixture
def corpus(files: Files) -> Corpus:
    return Corpus("train.{en,de}", files[0], files[1])


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """36 pairs are work enough for processes."""
    monkeypatch.setattr(store_module, "CHUNK_RECORDS", 5)
    monkeypatch.setattr(store_module, "INLINE_CHUNKS", 1)


def texts(store: Store, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Every pair of a store, back as text."""
    out = []
    for i in range(len(store)):
        src, _, tgt, _ = gather(store, np.array([i]))
        out.append((tokenizer.decode(src.tolist()), tokenizer.decode(tgt.tolist())))
    return out


def test_a_store_holds_every_pair_in_order(
    tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer, pairs: list[tuple[str, str]]
) -> None:
    store, account = prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions(), workers=1)
    assert texts(store, tokenizer) == pairs
    assert account.kept == len(store) == len(pairs) and account.read == len(pairs)
    assert store["source"].lengths.dtype == np.int32
    assert store["source"].lengths.tolist() == [len(tokenizer.encode(src)) for src, _ in pairs]
    assert store["target"].lengths.tolist() == [len(tokenizer.encode(tgt)) for _, tgt in pairs]
    assert gather(store, np.array([3]))[0].dtype == np.uint16
    assert not (tmp_path / "store.partial").exists()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=20))
def test_gathering_is_concatenating(tokenizer: Tokenizer, indices: list[int]) -> None:
    pairs = [("The dog", "Der Hund"), ("", ""), ("a", "ein Kind"), ("sees 12", ""), ("", "will")]
    src_ids, src_lengths, tgt_ids, tgt_lengths = gather(
        store_in_memory(pairs, tokenizer), np.array(indices, dtype=np.int64)
    )
    src = [tokenizer.encode(pairs[i][0]) for i in indices]
    tgt = [tokenizer.encode(pairs[i][1]) for i in indices]
    assert src_ids.tolist() == list(chain(*src)) and src_lengths.tolist() == [len(ids) for ids in src]
    assert tgt_ids.tolist() == list(chain(*tgt)) and tgt_lengths.tolist() == [len(ids) for ids in tgt]


def test_unfit_pairs_are_dropped_and_accounted_for(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.tsv"
    rows = [
        ("The dog", "Der Hund"),
        (" ", "Ein Kind"),
        ("A child " * 120, "Ein Kind " * 120),
        ("The dog", "Der Hund"),
        ("dog", "Der Hund mag das Haus " * 4),
        ("The house", "das Haus"),
        ("the HOUSE!", "ein Haus"),
    ]
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows))
    clean = CleanOptions(max_length=100, max_ratio=3.0, deduplicate=True)
    held_out = HeldOut(valid=[("The house.", "Das Haus.")])
    store, account = prepare_store(
        tmp_path / "store", [Corpus("a.tsv", path, None)], tokenizer, clean, held_out=held_out
    )
    assert texts(store, tokenizer) == rows[:1]
    assert account.dropped == {"empty": 1, "too long": 1, "duplicate": 1, "length ratio": 1, "held out": 2}
    assert account.examples["duplicate"] == "a.tsv, line 4: 'The dog' / 'Der Hund'"
    assert account.examples["held out"].startswith("a.tsv, line 6:")
    assert Store.open(tmp_path / "store").account == account


def test_processes_write_the_same_store_as_one(
    tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer, small_chunks: None
) -> None:
    extra = tmp_path / "extra.tsv"
    extra.write_text("The dog\tDer Hund\n\n".replace("\n\n", "\n \t \n") * 20)
    corpora = [corpus, Corpus("extra.tsv", extra, None, weight=2.5)]
    held_out = HeldOut(test=[("A child sees the house", "x")])
    seen: list[int] = []
    clean = CleanOptions(deduplicate=True)
    prepare_store(tmp_path / "one", corpora, tokenizer, clean, held_out=held_out, workers=1)
    store, account = prepare_store(
        tmp_path / "two", corpora, tokenizer, clean, held_out=held_out, workers=2, progress=seen.append
    )
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert seen[-1] == account.read == 76 and seen == sorted(seen)
    assert account.dropped == {"held out": 1, "empty": 20, "duplicate": 19}
    assert store.corpora == [("train.{en,de}", 1.0, 0, 35), ("extra.tsv", 2.5, 35, 36)]


def test_large_vocabularies_get_wider_ids(
    tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "vocab_size", 65536)
    store, _ = prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions(), workers=1)
    assert gather(store, np.array([0]))[0].dtype == np.uint32


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_in_the_text_reaches_the_caller_and_leaves_nothing_behind(
    tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer, small_chunks: None, workers: int
) -> None:
    corpus.source.write_bytes(corpus.source.read_bytes() + b"\xff\n")
    with pytest.raises(UserError, match=r"train\.en, line 37: is not valid UTF-8"):
        prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions(), workers=workers)
    assert not list(tmp_path.glob("store*"))


class RecordedPool(WorkerPool):
    last: WorkerPool

    def __init__(self, job: ChunkEncoder, num_workers: int) -> None:
        super().__init__(job, num_workers)
        RecordedPool.last = self


def test_ctrl_c_ends_the_processes_and_leaves_nothing_behind(
    tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WorkerPool", RecordedPool)

    def press_ctrl_c(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions(), workers=2, progress=press_ctrl_c)
    assert all(worker._process.returncode is not None for worker in RecordedPool.last._workers)
    assert not list(tmp_path.glob("store*"))


def test_a_process_that_dies_or_fails_is_reported(tokenizer: Tokenizer) -> None:
    job = ChunkEncoder(tokenizer, CleanOptions(), None, "<u2")
    broken = ChunkEncoder(tokenizer, CleanOptions(), None, "no such type")
    chunk = Chunk(0, "a", 0, [])
    with WorkerPool(broken, 1) as pool, pytest.raises(RegardError, match=r"(?s)failed: .*no such type"):
        list(pool.map([chunk]))
    with WorkerPool(job, 1) as pool:
        assert len(list(pool.map([chunk]))) == 1
        pool._workers[0].kill()
        with pytest.raises(RegardError, match="ended unexpectedly"):
            list(pool.map([chunk]))


def test_a_script_without_a_main_guard_may_use_processes(tmp_path: Path, files: Files, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
from itertools import chain
from pathlib import Path
import regard.data.store as store
from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus
from regard.data.tokenizer import Tokenizer
print("once")
store.CHUNK_RECORDS, store.INLINE_CHUNKS = 5, 1
corpus = Corpus("x", Path({str(files[0])!r}), Path({str(files[1])!r}))
tokenizer = Tokenizer.load(Path({str(tmp_path / "tokenizer")!r}))
print(len(store.prepare_store(Path({str(tmp_path / "store")!r}), [corpus], tokenizer, CleanOptions(), workers=2)[0]))
assert "torch" not in sys.modules
"""
    )
    root = Path(store_module.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=240,
        env={"PYTHONPATH": str(root)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "once\n36\n"), done.stderr


def test_nothing_left_after_cleaning_is_refused_with_the_account(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\t\n \tb\n")
    with pytest.raises(
        UserError, match=r"no pair is left after cleaning: 2 pairs read, 0 kept .*empty: 2, first a\.tsv"
    ):
        prepare_store(tmp_path / "store", [Corpus("a.tsv", path, None)], tokenizer, CleanOptions())
    assert not (tmp_path / "store").exists()


def test_an_earlier_store_is_replaced_but_nothing_else_is(tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions())
    store, _ = prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions(max_length=6))
    assert len(Store.open(tmp_path / "store")) == len(store) < 36
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds something else"):
        prepare_store(tmp_path / "mine", [corpus], tokenizer, CleanOptions())
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_the_key_changes_with_whatever_the_store_is_made_from(
    tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer
) -> None:
    store, _ = prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions())
    assert store.key == store_key([corpus], tokenizer, CleanOptions())
    assert store.key != store_key([corpus], tokenizer, CleanOptions(max_length=9))
    assert store.key != store_key([corpus], tokenizer, CleanOptions(), HeldOut(valid=[("a", "b")]))
    corpus.source.write_text(corpus.source.read_text() + "x\n")
    assert store.key != store_key([corpus], tokenizer, CleanOptions())


@pytest.mark.parametrize("name", ["source.ids", "source.offsets", "target.ids", "target.offsets", "store.json"])
def test_a_store_cut_short_is_refused_by_name(tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer, name: str) -> None:
    prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions())
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=rf"{name}: is missing, truncated or damaged; delete"):
        Store.open(tmp_path / "store")


def test_a_store_of_another_format_or_no_store_is_refused(tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"has no store\.json"):
        Store.open(tmp_path)
    prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions())
    path = tmp_path / "store" / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(UserError, match="must have format 1, but has 99"):
        Store.open(tmp_path / "store")


def test_a_store_that_cannot_be_written_is_reported(tmp_path: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        prepare_store(tmp_path / "file" / "store", [corpus], tokenizer, CleanOptions())
