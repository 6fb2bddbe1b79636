"""Tokenizers of Hugging Face in Regard: the ids and the text that transformers gives, and no text that becomes a control token."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from regard.data.huggingface import Controls
from regard.data.tokenizer import Tokenizer, used_files
from regard.errors import UserError
from regard.importing.tokenizer import Shape, read_tokenizer
from tests import json_tokenizers
from tests.importing.opus import tatoeba, write_json
from tests.mutations import mutations

KINDS = list(json_tokenizers.KINDS)
SHAPES: dict[str, Shape] = {"bert": "encoder", "roberta": "encoder", "t5": "both"}
SETTINGS: dict[str, Any] = {"decoder_start_token_id": 0}
SIZE = 600
CONTROLS = [
    "</s>",
    "<s>",
    "<|endoftext|>",
    "<|eot_id|>",
    "[SEP]",
    "[MASK]",
    "<mask>",
    "<pad>",
    "<unk>",
    "<eos>",
    "<extra_id_0>",
]
AWKWARD = [
    "",
    " ",
    "x",
    "  two  spaces  ",
    "a\tb\u00a0c\n\nd\r\n",
    "Ａｂｃ ﬁn … “quoted”",
    "漢字 in the middle, e\u0301 and é",
    "👩\u200d👩\u200d👧 \U0010ffff\uffff",
    "▁ literal ▁▁",
    "I'll don't WE'VE 12345 3.14159",
    "Ġ is not a space, Ċ is not a break",
    "\x00\x01\x7f\x85\u2028\ufeff",
    "<0x41> <0xE2>",
    "##ing [unused1]",
    "<tool> here",
    "\ufdd0 alone",
]
any_text = st.text(st.characters(exclude_categories=["Cs"]))
typed_controls = st.lists(st.sampled_from([*CONTROLS, "\ufdd0", " ", "a", "<|", "|>"])).map("".join)


@cache
def ours(kind: str, tmp: Path) -> Tokenizer:
    json_tokenizers.write(tmp / kind, kind)
    tokenizer, notes = read_tokenizer(tmp / kind, SETTINGS, SHAPES.get(kind, "decoder"), None, SIZE)
    assert not notes
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(kind: str, folder: Path) -> Tokenizer:
    return ours(kind, folder)


@pytest.fixture
def theirs(kind: str, folder: Path, tokenizer: Tokenizer) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(folder / kind, split_special_tokens=True)


def control_ids(tokenizer: Tokenizer) -> set[int]:
    return set(tokenizer.control_names.values()) - {tokenizer.unk_id if tokenizer.unk_id != tokenizer.eos_id else -1}


def texts() -> list[str]:
    return tatoeba("dev.en", 200) + tatoeba("dev.de", 200) + AWKWARD


# The same ids and the same text


def test_every_text_gets_the_ids_that_transformers_gives(tokenizer: Tokenizer, theirs: Any) -> None:
    lines = texts()
    expected = [list(theirs(line, add_special_tokens=False)["input_ids"]) for line in lines]
    found = [tokenizer.encode(line, "target") for line in lines]
    assert found == expected and tokenizer.encode_batch(lines, "target") == expected
    assert len({i for ids in found for i in ids}) > 60


def test_ids_become_the_text_that_transformers_writes(tokenizer: Tokenizer, theirs: Any) -> None:
    lines = [tokenizer.encode(line, "target") for line in texts()]
    known = set(tokenizer.raw_pieces())
    for ids in [*lines, *([i] for i in sorted(known)), *(ids[1:-1] for ids in lines[:100])]:
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(ids) == expected


def test_an_input_is_framed_as_transformers_does(tokenizer: Tokenizer, theirs: Any, kind: str) -> None:
    one, two = tokenizer.encode("The dog", "target"), tokenizer.encode("a cat", "target")
    start = list(tokenizer.controls.source_opening if tokenizer.controls else ())
    ids, types = tokenizer.frame(one)
    assert [*start, *ids] == list(theirs("The dog")["input_ids"]) and set(types) == {0}
    both = theirs("The dog", "a cat", return_token_type_ids=True)
    ids, types = tokenizer.frame(one, two)
    assert [*start, *ids] == list(both["input_ids"])
    if kind == "bert":  # the one of these whose model has two token types
        assert types == list(both["token_type_ids"]) and set(types) == {0, 1}


def test_the_special_ids_are_those_of_transformers(tokenizer: Tokenizer, theirs: Any, kind: str) -> None:
    expected = {"bert": (2, 3), "roberta": (0, 2), "t5": (0, 1), "words": (-1, 1)}
    start = theirs.bos_token_id, theirs.eos_token_id
    assert (tokenizer.bos_id, tokenizer.eos_id) == expected.get(kind, start)
    for name in ("unk", "pad", "mask"):
        assert getattr(tokenizer, f"{name}_id") == (-1 if (i := getattr(theirs, f"{name}_token_id")) is None else i)
    assert tokenizer.vocab_size == SIZE


# Control tokens


@settings(max_examples=60, deadline=None)
@given(text=any_text | typed_controls)
@example(text="</s>")
@example(text=" ".join(CONTROLS))
@example(text="".join("\ufdd0" + name for name in CONTROLS))
def test_no_text_becomes_a_control_token(folder: Path, text: str) -> None:
    for kind in KINDS:
        tokenizer = ours(kind, folder)
        ids = [tokenizer.encode(text, "target"), *tokenizer.encode_batch([text, "a"], "target")]
        assert control_ids(tokenizer).isdisjoint(i for one in ids for i in one), kind


@pytest.mark.parametrize(("kind", "text"), [("t5", "a </s> b"), ("words", "the <eos> a")])
def test_without_hidden_names_a_typed_name_would_be_the_end(folder: Path, kind: str, text: str) -> None:
    """Or the test above would not notice."""
    tokenizer = ours(kind, folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder / kind, split_special_tokens=True)
    assert tokenizer.eos_id in theirs(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.eos_id not in tokenizer.encode(text, "target")


def test_names_of_control_tokens_are_text_that_comes_back(folder: Path) -> None:
    for kind in ("gpt2", "llama3", "llama2", "roberta"):
        tokenizer = ours(kind, folder)
        text = " ".join(CONTROLS)
        assert tokenizer.decode(tokenizer.encode(text)) == text, kind


def test_tokens_that_were_added_as_text_stay_one_token(folder: Path) -> None:
    tokenizer = ours("llama3", folder)
    [number] = tokenizer.encode("<tool>")
    assert tokenizer.raw_pieces()[number] == "<tool>" and number > max(tokenizer.control_names.values())


def test_lone_surrogates_and_unknown_ids_do_no_harm(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
    assert tokenizer.encode_batch(["a\ud800b"] * 20) == [tokenizer.encode("a\ufffdb")] * 20
    ids = tokenizer.encode("The dog", "target")
    assert tokenizer.decode([-1, 10**6, SIZE - 1, *tokenizer.control_names.values(), *ids]) == tokenizer.decode(ids)


# Display


def test_pieces_are_shown_as_words(folder: Path) -> None:
    from regard.data.pieces import group_words

    for kind in ("gpt2", "llama3", "roberta", "t5", "bert"):
        tokenizer = ours(kind, folder)
        ids = [*tokenizer.encode("the dog, does he know it?", "target"), tokenizer.eos_id]
        words = group_words(ids, tokenizer.pieces(ids), [tokenizer.eos_id]).words
        assert words[:-1] == ["the", "dog", ",", "does", "he", "know", "it", "?"], kind
        assert words[-1] in tokenizer.control_names


def test_letters_are_those_of_the_pieces(tokenizer: Tokenizer) -> None:
    assert set("abdeghinorstu ") <= tokenizer.characters and "漢" not in tokenizer.letters
    assert len(tokenizer.pieces([-3, 10**9])) == 2


# Files


def test_a_saved_sent_and_loaded_tokenizer_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    text = "The dog </s> 😀 finds 12 trees."
    content, blocks = tokenizer.to_message()
    others = (
        Tokenizer.load(tmp_path),
        copy.deepcopy(tokenizer),
        Tokenizer.from_message(json.loads(json.dumps(content)), blocks),
    )
    for other in others:
        assert other.encode(text) == tokenizer.encode(text) and other.fingerprint == tokenizer.fingerprint
        assert (other.opening, other.closing, other.stop_ids) == (
            tokenizer.opening,
            tokenizer.closing,
            tokenizer.stop_ids,
        )
    assert used_files(tmp_path) == ["tokenizer.json", "huggingface.json"]
    assert json.loads((tmp_path / "tokenizer.json").read_text())["format"] == 4


def test_the_file_is_kept_as_it_came(tokenizer: Tokenizer, kind: str, folder: Path, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    assert (tmp_path / "huggingface.json").read_bytes() == (folder / kind / "tokenizer.json").read_bytes()


def test_reading_and_using_one_imports_no_torch(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    code = (
        "import sys; from pathlib import Path; from regard.data.tokenizer import Tokenizer\n"
        "assert 'tokenizers' not in sys.modules\n"
        f"Tokenizer.load(Path({str(tmp_path)!r})).encode('a')\n"
        "assert 'tokenizers' in sys.modules and not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_without_the_package_the_remedy_is_named(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"needs the package tokenizers.*pip install 'regard\[tokenizers\]'"):
        Tokenizer.load(tmp_path)


def test_what_would_cut_or_pad_or_change_a_text_at_random_is_off(folder: Path) -> None:
    content = json.loads(json_tokenizers.content("gpt2"))
    plain = ours("gpt2", folder)
    assert plain.controls is not None
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 10**12},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    content["model"]["dropout"] = 0.9
    text = "The dog knows nothing at all about it."
    assert Tokenizer([json.dumps(content).encode()], controls=plain.controls).encode(text) == plain.encode(text)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"controls": {"vocab_size": 10**9}}, "controls.vocab_size must be at most"),
        ({"controls": {"vocab_size": SIZE, "end": SIZE}}, f"controls.end must be at most {SIZE - 1}"),
        ({"controls": {"vocab_size": SIZE, "stops": [-1]}}, "controls.stops must not be negative"),
        ({"controls": {"vocab_size": SIZE, "stops": "all"}}, "controls.stops must be a whole number"),
        ({"controls": {"vocab_size": SIZE, "surprise": 1}}, "controls must give the ids"),
        ({"controls": {"end": 1}}, "controls.vocab_size must be a whole number"),
        ({"controls": None}, "controls must give the ids"),
        ({"controls": {"vocab_size": 9, "end": 1}}, "ids must be below 9"),
        ({"kind": ["huggingface"]}, "`kind` must be one of"),
        ({"kind": "joint"}, "joint.model: there is no such file"),
    ],
)
def test_a_wrong_description_is_refused(folder: Path, tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    ours("gpt2", folder).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=complaint):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"model": 3}', b"\xff\xfe", b'{"a":' * 100_000, None])
def test_a_damaged_file_is_refused_by_name(folder: Path, tmp_path: Path, content: bytes | None) -> None:
    ours("gpt2", folder).save(tmp_path)
    path = tmp_path / "huggingface.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"huggingface\.json: "):
        Tokenizer.load(tmp_path)


def test_a_damaged_file_is_refused_in_one_line_or_read(kind: str, folder: Path, tmp_path: Path) -> None:
    ours(kind, folder).save(tmp_path)
    path = tmp_path / "huggingface.json"
    whole = path.read_bytes()
    refused = []
    for spoilt in mutations(whole, 60, kind):
        path.write_bytes(spoilt)
        try:
            Tokenizer.load(tmp_path).encode("The dog </s> 漢")
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 10 and all("\n" not in said and "huggingface.json" in said for said in refused)


@pytest.mark.parametrize("vocabulary", [[[]], [["a"]], [[1, 2]], [[[], 1]], 3, "abc", None])
def test_a_vocabulary_of_another_kind_is_refused_by_name(folder: Path, tmp_path: Path, vocabulary: Any) -> None:
    ours("t5", folder).save(tmp_path)
    path = tmp_path / "huggingface.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "model": {**content["model"], "vocab": vocabulary}}))
    with pytest.raises(UserError, match=r"huggingface\.json: "):
        Tokenizer.load(tmp_path)


# Folders


def test_vocab_and_merges_are_gpt2s_tokenizer(tmp_path: Path, folder: Path) -> None:
    content = json.loads(json_tokenizers.content("gpt2"))
    write_parts(tmp_path, content, {"<|endoftext|>": 400})
    tokenizer, _ = read_tokenizer(tmp_path, {}, "decoder", "gpt2", SIZE)
    theirs = GPT2Tokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    compare(tokenizer, theirs)
    assert tokenizer.eos_id == tokenizer.bos_id == tokenizer.unk_id == 400 and tokenizer.opening == ()


def test_vocab_and_merges_are_robertas_tokenizer(tmp_path: Path) -> None:
    content = json.loads(json_tokenizers.content("roberta"))
    write_parts(tmp_path, content, {"<mask>": 404})
    tokenizer, _ = read_tokenizer(tmp_path, {}, "encoder", "roberta", SIZE)
    compare(tokenizer, RobertaTokenizer.from_pretrained(tmp_path, split_special_tokens=True))
    assert (tokenizer.opening, tokenizer.between, tokenizer.closing) == ((0,), (2, 2), (2,))
    assert (tokenizer.mask_id, tokenizer.pad_id) == (404, 1)


@pytest.mark.parametrize(
    "changes", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}]
)
def test_vocab_txt_is_berts_tokenizer(tmp_path: Path, changes: dict[str, Any]) -> None:
    vocabulary = json.loads(json_tokenizers.content("bert"))["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text(
        "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__))
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **changes}))
    tokenizer, _ = read_tokenizer(tmp_path, {}, "encoder", "bert", SIZE)
    compare(tokenizer, BertTokenizer.from_pretrained(tmp_path, split_special_tokens=True))
    assert (tokenizer.opening, tokenizer.between, tokenizer.closing, tokenizer.mask_id) == ((2,), (3,), (3,), 4)


def write_parts(folder: Path, content: dict[str, Any], more: dict[str, int]) -> None:
    merges = [" ".join(merge) for merge in content["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps({**content["model"]["vocab"], **more}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text("{}")


def compare(tokenizer: Tokenizer, theirs: Any) -> None:
    lines = texts()
    for line in lines:
        ids = tokenizer.encode(line)
        assert ids == theirs(line, add_special_tokens=False)["input_ids"]
        assert tokenizer.frame(ids)[0] == theirs(line)["input_ids"]
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(ids) == expected


def test_tokens_that_only_the_settings_add_are_added(tmp_path: Path) -> None:
    token = {"content": "<|im_end|>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    json_tokenizers.write(
        tmp_path, "gpt2", added_tokens_decoder={"401": {**token, "special": True}}, eos_token="<|im_end|>"
    )
    tokenizer, _ = read_tokenizer(tmp_path, {"eos_token_id": 400}, "decoder", None, SIZE)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.control_names["<|im_end|>"] == theirs.eos_token_id == 401
    assert tokenizer.eos_id == 400 and tokenizer.stop_ids == (400, 401), "the model's own setting comes first"


@pytest.mark.parametrize(
    "flags", [{"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}]
)
def test_flags_frame_an_input_where_there_is_no_tokenizer_json(tmp_path: Path, flags: dict[str, bool]) -> None:
    for kind, has_json in (("gpt2", True), ("llama2", True), ("gpt2", False)):
        folder = tmp_path / f"{kind}-{has_json}"
        json_tokenizers.write(folder, kind, **flags)
        if not has_json:
            write_parts(folder, json.loads(json_tokenizers.content(kind)), {"<|endoftext|>": 400})
            write_json(folder / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", **flags})
            (folder / "tokenizer.json").unlink()
        tokenizer, _ = read_tokenizer(folder, {}, "decoder", "gpt2", SIZE)
        theirs = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.frame(tokenizer.encode("the dog"))[0] == theirs("the dog")["input_ids"]


def test_a_folder_without_a_tokenizer_takes_numbers_for_text(tmp_path: Path) -> None:
    tokenizer, [note] = read_tokenizer(tmp_path, {"eos_token_id": [2, 7], "bos_token_id": 1}, "decoder", "gpt2", 68)
    assert "has no tokenizer.json" in note and tokenizer.kind == "ids"
    assert tokenizer.encode("5 17  3") == [5, 17, 3] and tokenizer.decode([5, 17, 3]) == "5 17 3"
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    for wrong in ("68", "-1", "a", "1.5", "９"):
        with pytest.raises(UserError, match="text must be token ids below 68"):
            tokenizer.encode(wrong)
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode("5 17") == [5, 17]


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model"])
def test_a_tokenizer_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=f"{name}: a tokenizer must be a tokenizer.json.*save_pretrained"):
        read_tokenizer(tmp_path, {}, "both", None, SIZE)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(UserError, match=r"controls\.pad must be at most 9"):
        Controls(10, pad=10)
