"""New pieces for an old vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece

from regard.data.clean import CleanOptions
from regard.data.encoding_workers import ChunkEncoder, _encoder_message, _parse_encoder
from regard.data.extend import extend_tokenizer, unknown_characters
from regard.data.split import HeldOut
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Special, Vocabulary
from regard.errors import UserError

OLD = ["the cat sat on the mat and the dog did not", "a cat and a dog sat there", "not the mat"] * 5
NEW = ["ɛno yɛ asɛm kɛse paa", "me yɛ obi a ɔyɛ asɛm", "ɔkɔɔ fie anɔpa yi"] * 20


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.train(OLD, 360, tmp_path_factory.mktemp("old"), protects=True)


def test_old_ids_stay_and_new_text_needs_fewer(old: Tokenizer) -> None:
    new = extend_tokenizer(old, NEW, 40, 1.0, seed=1)
    assert old.vocab_size < new.vocab_size <= old.vocab_size + 40
    assert new.pieces(range(old.vocab_size)) == old.pieces(range(old.vocab_size))
    assert (new.bos_id, new.eos_id, new.span_ids, new.protects) == (old.bos_id, old.eos_id, old.span_ids, True)
    for line in OLD:
        assert new.encode(line) == old.encode(line)  # it has none of the new characters, and its merges come first
    for line in NEW:
        assert new.decode(new.encode(line)) == line
        assert len(new.encode(line)) < 0.6 * len(old.encode(line))


def test_the_characters_come_first(old: Tokenizer) -> None:
    new = extend_tokenizer(old, NEW, 3, 1.0, seed=1)
    added = new.pieces(range(old.vocab_size, new.vocab_size))
    assert set(added) <= set("".join(NEW)) and len(added) == 3
    assert not any(old.has_piece(piece) for piece in added)


def test_every_new_merge_can_be_reached(old: Tokenizer) -> None:
    """sentencepiece itself uses the added pieces, each at least once, on text that has them."""
    new = extend_tokenizer(old, NEW, 30, 1.0, seed=1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=new.models[0])
    assert processor.get_piece_size() == new.vocab_size
    pieces = new.pieces(range(old.vocab_size, new.vocab_size))
    whole = [piece for piece in pieces if new.spell(piece) == [new.vocab_size - len(pieces) + pieces.index(piece)]]
    assert len(whole) > 0.9 * len(pieces)  # now and then merges in another order stand in a piece's way


def test_an_extended_tokenizer_survives_its_folder(old: Tokenizer, tmp_path: Path) -> None:
    new = extend_tokenizer(old, NEW, 20, 1.0, seed=1)
    new.save(tmp_path)
    assert Tokenizer.load(tmp_path).encode(NEW[0]) == new.encode(NEW[0])
    assert new.fingerprint != old.fingerprint


def test_characters_that_it_spells_in_bytes_are_counted(old: Tokenizer) -> None:
    unknown = unknown_characters(old, NEW, seed=1)
    assert unknown["ɛ"] == "".join(NEW).count("ɛ")
    assert "a" not in unknown and " " not in unknown


def test_imported_vocabularies_are_refused(old: Tokenizer) -> None:
    imported = Tokenizer([old.models[0], old.models[0]])
    with pytest.raises(UserError, match=r"tokenizer\.extend: needs one joint vocabulary"):
        extend_tokenizer(imported, NEW, 10, 1.0, seed=1)


def test_worker_processes_get_the_whole_tokenizer(old: Tokenizer) -> None:
    """What protects spans, and an imported model's own numbers, decide about ids as much as the pieces do."""
    vocabulary = Vocabulary({"▁the": 5, "▁cat": 7}, {"▁the": 6}, Special(0, 1, 2, 3, (4,)), 9)
    for tokenizer in (old, Tokenizer([old.models[0]] * 2, vocabulary)):
        job = ChunkEncoder(tokenizer, CleanOptions(), HeldOut([], []), "<u2")
        content, blocks = _encoder_message(job)
        sent = _parse_encoder(json.loads(json.dumps(content)), blocks).tokenizer
        assert sent.fingerprint == tokenizer.fingerprint
        assert (sent.protects, sent.encode("the cat")) == (tokenizer.protects, tokenizer.encode("the cat"))
