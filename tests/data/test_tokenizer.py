from __future__ import annotations

import copy
import io
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.data.tokenizer import NUM_SPANS, NUM_TAGS, Tokenizer
from regard.errors import UserError

any_text = st.text(st.characters(exclude_categories=["Cs"]))
SPECIAL = ["\u2581", "</s>", "<span0>", "<u2581>", "<0x41>", "<unk>", "\ufffd", "⁇", "▅", "the", "12"]
SPACES = [" ", "  ", "\0", "\n", "\r\n", "\t", "\u2028", "\x85", "\u3000", "\ufeff"]
RARE = ["é", "e\u0301", "😀", "👩\u200d👩\u200d👧", "\uffff", "\U0010ffff"]
tricky = st.lists(st.sampled_from([*SPECIAL, *SPACES, *RARE])).map("".join)
GIVEN = settings(max_examples=200, deadline=None)


@GIVEN
@given(any_text | tricky)
@example("")
@example(" ")
@example("\u2581\u2581 \u2581a ")
def test_decode_gives_back_every_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, "the dog"]) == [ids, tokenizer.encode("the dog")]


@GIVEN
@given(any_text | tricky)
def test_no_text_produces_a_control_piece(tokenizer: Tokenizer, text: str) -> None:
    ids = set(tokenizer.encode(text.replace("\u2581", "")))
    first_byte = 4 + 1 + NUM_SPANS + NUM_TAGS
    assert not ids or min(ids) >= first_byte


@GIVEN
@given(st.data())
def test_parts_come_back_as_they_went_in(tokenizer: Tokenizer, data: st.DataObject) -> None:
    reserved = st.sampled_from(tokenizer.span_ids + tokenizer.tag_ids)
    texts = (any_text | tricky).filter(bool)
    parts: list[str | int] = []
    for part in data.draw(st.lists(texts | reserved)):
        if not (parts and isinstance(part, str) and isinstance(parts[-1], str)):  # neighbours would come back as one
            parts.append(part)
    assert tokenizer.decode_parts(tokenizer.encode_parts(parts)) == parts


@GIVEN
@given(st.lists(st.integers(-5, 500)))
def test_decoding_never_raises(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert isinstance(tokenizer.decode(ids), str)
    tokenizer.decode_parts(ids)
    assert len(tokenizer.pieces(ids)) == len(ids)


def test_half_a_character_is_shown_as_a_replacement_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀")
    assert tokenizer.decode(ids[:-1]) == "a\ufffd"


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.encode_batch(["a\ud800b"]) == [tokenizer.encode("a\ufffdb")]


def test_the_ids_of_special_pieces_are_fixed(tokenizer: Tokenizer) -> None:
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2, 3)
    assert tokenizer.span_ids == tuple(range(5, 37)) and tokenizer.tag_ids == tuple(range(37, 69))
    assert tokenizer.pieces([0, 1, 2, 3, 4, 5, 37]) == ["<unk>", "<s>", "</s>", "<pad>", "<u2581>", "<span0>", "<tag0>"]
    assert tokenizer.decode([1, 5, *tokenizer.encode("the dog"), 37, 2, 3]) == "the dog"


def test_text_after_a_tag_begins_a_sentence_and_text_after_a_span_goes_on(tokenizer: Tokenizer) -> None:
    tag, span = tokenizer.tag_ids[0], tokenizer.span_ids[0]
    dog = tokenizer.encode("The dog")
    assert tokenizer.encode_parts([tag, "The dog"]) == [tag, *dog]
    assert tokenizer.encode_parts([span, " The dog"]) == [span, *dog]
    with pytest.raises(ValueError, match="a reserved id"):
        tokenizer.encode_parts(["a", tokenizer.eos_id])


def test_the_same_lines_give_the_same_model(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    lines = [line for pair in pairs for line in pair]
    one = Tokenizer.train(lines, 420, tmp_path / "a", max_lines=50)
    two = Tokenizer.train(iter(lines), 420, tmp_path / "b", max_lines=50)
    assert one.fingerprint == two.fingerprint
    assert (tmp_path / "a" / "joint.model").read_bytes() == (tmp_path / "b" / "joint.model").read_bytes()
    other = Tokenizer.train(lines, 420, tmp_path / "c", max_lines=50, seed=1)
    assert other.fingerprint != one.fingerprint


def test_a_wish_too_small_is_raised_to_what_the_characters_need(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    lines = [line for pair in pairs for line in pair]
    tokenizer = Tokenizer.train(lines, 10, tmp_path, character_coverage=1.0)
    characters = set("".join(lines))
    assert tokenizer.vocab_size == 4 + 1 + NUM_SPANS + NUM_TAGS + 256 + len(characters)


def test_a_wish_too_large_is_lowered_to_what_the_corpus_gives(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a dog", "a cat"], 32000, tmp_path)
    assert 325 < tokenizer.vocab_size < 350
    assert tokenizer.decode(tokenizer.encode("ein Hund")) == "ein Hund"


def test_many_characters_leave_half_of_the_vocabulary_to_bpe(tmp_path: Path) -> None:
    lines = [f"漢字 {chr(0x4E00 + i)}{chr(0x4E00 + i % 700)} 漢字文" for i in range(3000)]
    tokenizer = Tokenizer.train(lines, 1000, tmp_path)
    assert tokenizer.vocab_size <= 1000
    learnt = [tokenizer.pieces([i])[0] for i in range(325, tokenizer.vocab_size)]
    assert sum(len(piece) > 1 for piece in learnt) >= 300
    rare = chr(0x4E00 + 2999)
    assert tokenizer.decode(tokenizer.encode(rare)) == rare and len(tokenizer.encode(rare)) == 4


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_no_text_is_no_vocabulary(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(UserError, match="at least one line with words"):
        Tokenizer.train(lines, 400, tmp_path)


def test_odd_training_lines_do_no_harm(tmp_path: Path) -> None:
    lines = ["\u2581\u2581", "a\0b", "x" * 100_000, "\ud800", "</s> <span0>", "a\nb", *["a normal line"] * 5]
    tokenizer = Tokenizer.train(lines, 400, tmp_path)
    assert tokenizer.decode(tokenizer.encode("\u2581 a")) == "\u2581 a"


def test_training_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Tokenizer.train(["a dog", "a cat"], 10, tmp_path)
    assert capfd.readouterr() == ("", "")


def test_split_digits_makes_a_piece_of_each_digit(tmp_path: Path) -> None:
    lines = ["in 1984", "since 1984"] * 20
    assert (
        len(Tokenizer.train(lines, 400, tmp_path / "a", split_digits=True).encode("1984")) == 5
    )  # the space before it is a piece, too
    assert len(Tokenizer.train(lines, 400, tmp_path / "b").encode("1984")) == 1


def test_a_saved_copied_and_loaded_tokenizer_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "t")
    text = "The \u2581dog 😀 finds 12 trees."
    # deepcopy goes the way of pickle, by __reduce__.
    for other in (Tokenizer.load(tmp_path / "t"), copy.deepcopy(tokenizer)):
        assert other.encode(text) == tokenizer.encode(text)
        assert other.fingerprint == tokenizer.fingerprint and other.kind == "joint"
    assert {path.name for path in (tmp_path / "t").iterdir()} == {"joint.model", "tokenizer.json"}


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_or_missing_model_is_refused_by_name(
    tokenizer: Tokenizer, tmp_path: Path, content: bytes | None
) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / "joint.model"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"joint\.model: "):
        Tokenizer.load(tmp_path)


def test_a_cut_model_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / "joint.model"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"joint\.model: "):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (json.dumps({"format": 99, "kind": "joint"}), "update Regard"),
        (json.dumps({"format": 1, "kind": "triple"}), "`kind` must be"),
    ],
)
def test_a_wrong_description_is_refused(tokenizer: Tokenizer, tmp_path: Path, description: str, complaint: str) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(description)
    with pytest.raises(UserError, match=complaint):
        Tokenizer.load(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be a folder with a tokenizer"):
        Tokenizer.load(tmp_path / "nowhere")


def imported_model(lines: list[str]) -> bytes:
    """A sentencepiece model as other people train them."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=writer, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    return writer.getvalue()


def test_a_folder_of_two_models_encodes_with_one_and_decodes_with_the_other(
    tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    (tmp_path / "source.model").write_bytes(imported_model([src for src, _ in pairs]))
    (tmp_path / "target.model").write_bytes(imported_model([tgt for _, tgt in pairs]))
    tokenizer = Tokenizer.load(tmp_path)
    src, tgt = pairs[0]
    source = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.model"))
    assert tokenizer.kind == "pair" and tokenizer.span_ids == ()
    assert tokenizer.encode(src) == source.encode(src)
    assert tokenizer.encode_batch([tgt], side="target") == [tokenizer.encode(tgt, side="target")]
    assert tokenizer.decode([1, *tokenizer.encode(tgt, side="target"), 2, 9999]) == tgt
    assert tokenizer.decode_parts(tokenizer.encode(tgt, side="target")) == [tgt]
    tokenizer.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").fingerprint == tokenizer.fingerprint
    shutil.copy(tmp_path / "source.model", tmp_path / "again" / "joint.model")
    (tmp_path / "again" / "tokenizer.json").write_text('{"format": 1, "kind": "joint"}')
    with pytest.raises(UserError, match="reserved pieces"):
        Tokenizer.load(tmp_path / "again")
