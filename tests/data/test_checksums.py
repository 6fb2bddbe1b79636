"""Checksums of the store: no changed byte is trained on, whichever file it is in and whenever it changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard.data import checksums
from regard.data.checksums import Piece, PieceHasher, Recheck, check_pieces, digests_of, pieces_of
from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus
from regard.data.feed import Feed
from regard.data.pair_packing import PairPacking, make_sampler
from regard.data.store import Store, add_checksums, prepare_store
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

FILES = ("source.ids", "source.offsets", "target.ids", "target.offsets")


@pytest.fixture
def folder(tmp_path: Path, files: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of several pieces a file."""
    monkeypatch.setattr(checksums, "PIECE", 100)
    corpus = Corpus("train.{en,de}", *files)
    prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions(), workers=1)
    return tmp_path / "store"


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_refused_with_file_place_and_remedy(folder: Path, name: str) -> None:
    path = folder / name
    size = path.stat().st_size
    for place in range(0, size, max(1, size // 40)):
        flip(path, place, bit=place % 8)
        with pytest.raises(UserError) as error:
            Store.open(folder)
        assert name in str(error.value) and f"delete {folder}, and it is made anew" in str(error.value)
        flip(path, place, bit=place % 8)
    flip(path, size - 1)
    with pytest.raises(UserError, match=rf"{name}: (bytes .* do not match their checksum|is missing)"):
        Store.open(folder)


def test_tokens_that_change_places_are_refused(folder: Path) -> None:
    """The same bytes in another order: neither a count nor a sum would show it."""
    path = folder / "target.ids"
    ids = np.fromfile(path, "<u2")
    ids[[3, 5]] = ids[[5, 3]]
    ids.tofile(path)
    with pytest.raises(UserError, match=r"target\.ids: bytes 0 to 100 do not match"):
        Store.open(folder)


def test_any_other_value_in_store_json_is_refused(folder: Path) -> None:
    path = folder / "store.json"
    info = json.loads(path.read_text())
    others = (
        {**info, "pairs": 35},
        {**info, "corpora": [["x", 2.0, 0, 36]]},
        {**info, "key": "x"},
        {**info, "texts": {}},
    )
    for changed in (*others, {key: value for key, value in info.items() if key != "checksums"}):
        path.write_text(json.dumps(changed))
        with pytest.raises(UserError, match=r"store\.json: is missing, truncated or damaged; delete"):
            Store.open(folder)
    path.write_text(json.dumps(info, sort_keys=True))  # the same values, written in another way
    Store.open(folder)


def test_digests_do_not_depend_on_how_a_file_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "PIECE", 8)
    for size in (0, 1, 7, 8, 9, 16, 30):
        data = bytes(range(size))
        for step in (1, 3, 8, 50):
            hasher = PieceHasher()
            for start in range(0, size, step):
                hasher.update(data[start : start + step])
            assert hasher.digests() == digests_of({"x": np.frombuffer(data, np.uint8)})["x"]
            assert len(hasher.digests()) == -(-size // 8)


def test_threads_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "PIECE", 1 << 10)
    monkeypatch.setattr(checksums, "INLINE_BYTES", 0)
    array = np.arange(20_000, dtype="<i8")
    digests = digests_of({"x.ids": array})
    check_pieces(pieces_of(tmp_path, {"x.ids": array}, digests))
    array[12_345] += 1
    with pytest.raises(UserError, match=r"x\.ids: bytes 98,304 to 99,328 do not match"):
        check_pieces(pieces_of(tmp_path, {"x.ids": array}, digests))


def test_a_store_of_an_earlier_version_opens_and_gets_checksums(folder: Path, tokenizer: Tokenizer) -> None:
    path = folder / "store.json"
    info = json.loads(path.read_text())
    for name in ("checksums", "texts", "sha256"):
        del info[name]
    path.write_text(json.dumps(info))
    store = Store.open(folder)
    assert not store.content and not store.pieces and not store.texts
    added = add_checksums(folder, tokenizer.vocab_size)
    assert added.content and added.pieces
    flip(folder / "source.ids", 7)
    with pytest.raises(UserError, match=r"source\.ids: bytes 0 to 100"):
        Store.open(folder)


@pytest.mark.parametrize(("name", "place", "bit"), [("source.offsets", 8, 6), ("target.ids", 1, 7)])
def test_damage_that_shows_without_checksums_is_refused_without_them(
    folder: Path, tokenizer: Tokenizer, name: str, place: int, bit: int
) -> None:
    """Offsets that go back, and ids beyond the vocabulary."""
    path = folder / "store.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in info.items() if key not in ("checksums", "sha256")}))
    flip(folder / name, place, bit)
    with pytest.raises(UserError, match=f"{name}: is missing, truncated or damaged"):
        add_checksums(folder, tokenizer.vocab_size)


def test_the_content_is_the_ids_and_the_texts_are_the_lines(
    folder: Path, files: tuple[Path, Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    before = Store.open(folder)
    lines = files[1].read_text().splitlines()
    same_length = [i for i, line in enumerate(lines) if len(tokenizer.encode(line)) == len(tokenizer.encode(lines[0]))]
    first, second = same_length[:2]
    lines[first], lines[second] = lines[second], lines[first]
    files[1].write_text("\r\n".join(lines) + "\r\n")
    corpus = Corpus("train.{en,de}", *files)
    after, _ = prepare_store(tmp_path / "other", [corpus], tokenizer, CleanOptions())
    assert after["target"].lengths.tolist() == before["target"].lengths.tolist()
    assert after.content != before.content
    [name] = before.texts
    assert after.texts[name][0] == before.texts[name][0] and after.texts[name][1] != before.texts[name][1]
    lines[first], lines[second] = lines[second], lines[first]
    files[1].write_text("\r\n".join(lines) + "\r\n")  # other ends of lines are the same lines
    again, _ = prepare_store(tmp_path / "again", [corpus], tokenizer, CleanOptions())
    assert (again.content, again.texts) == (before.content, before.texts)


def test_each_piece_is_checked_again_once_per_epoch(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counted(Piece):
        def is_intact(self) -> bool:
            seen.append(self.start)
            return super().is_intact()

    data = np.zeros(4, np.uint8)
    [digest] = digests_of({"x": data})["x"]
    (tmp_path / "x").write_bytes(bytes(13))  # up to the end of the last piece
    pieces = [Counted(tmp_path / "x", start, data, digest) for start in range(10)]
    recheck = Recheck(pieces, start=0.5)
    for _ in range(8):
        recheck.advance(1 / 8)
    assert seen == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    Recheck([]).advance(1.0)  # a store in memory has no pieces


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_store_that_changes_during_a_run_ends_it_within_an_epoch(
    folder: Path, tokenizer: Tokenizer, ranks: int
) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    store = Store.open(copy)
    place = store["source"].offsets[20]
    with (copy / "source.ids").open("r+b") as file:  # in place, as a failing disk or another program would
        file.seek(2 * int(place))
        file.write(b"\x99\x99")

    def updates(rank: int) -> Feed:
        sampler = make_sampler(store["source"].lengths, store["target"].lengths, 60, seed=1)
        return Feed(store, sampler, PairPacking(store, 1, 2), 1, rank=rank, num_ranks=ranks)

    feeds = [updates(rank) for rank in range(ranks)]

    def train_an_epoch() -> None:
        while all(feed.epoch < 1 for feed in feeds):
            for feed in feeds:
                next(feed)

    with pytest.raises(UserError, match=r"source\.ids: bytes .* while it was in use; delete .*copy, and resume"):
        train_an_epoch()
    for feed in feeds:
        feed.close()


@pytest.mark.parametrize("name", ["source.ids", "target.offsets"])
def test_a_store_that_is_cut_short_during_a_run_ends_it_before_it_is_read(
    folder: Path, tokenizer: Tokenizer, name: str
) -> None:
    copy = folder.with_name(f"cut-{name}")
    shutil.copytree(folder, copy)
    store = Store.open(copy)
    sampler = make_sampler(store["source"].lengths, store["target"].lengths, 60, seed=1)
    feed = Feed(store, sampler, PairPacking(store, 1, 2), 1)
    size = (copy / name).stat().st_size
    os.truncate(copy / name, size // 2)
    with pytest.raises(UserError, match=rf"{name}: must have {size:,} bytes, but has {size // 2:,}: cut short while"):
        next(feed)
    (copy / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: must have {size:,} bytes, but has 0"):
        Recheck(store.pieces).advance(0.0)
    feed.close()
