"""Bundles with a shortlist: who makes it, who keeps it, and what CTranslate2 finds with it, against a search over masked logits."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.bundle import Bundle, load_bundle, load_weights, save_bundle
from regard.cli import main
from regard.data.shortlist import Shortlist
from regard.decode.ctranslate2_engine import CTranslate2Engine
from regard.decode.options import Hypothesis, SearchOptions, Wish
from regard.decode.search.core import beam_search
from regard.decode.torch_engine import TorchEngine
from tests.commands import fails
from tests.tiny import reversal_pairs, write_pairs

pytest.importorskip("ctranslate2")

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"  # reverses letters
OPTIONS = SearchOptions(max_extra=6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def with_shortlist(folder: Path, shortlist: Shortlist) -> Bundle:
    golden = load_bundle(GOLDEN)
    save_bundle(
        folder,
        load_weights(golden),
        golden.config,
        golden.tokenizer,
        "",
        source=golden.source,
        target=golden.target,
        decode=golden.decode,
        max_length=golden.max_length,
        facts={},
        shortlist=shortlist,
    )
    return load_bundle(folder)


def narrow(bundle: Bundle) -> Shortlist:
    """One that often lacks the right letter: each becomes itself and two others, and two letters may come anywhere."""
    letters = sorted({piece for letter in "abcdefghijklmnop" for piece in bundle.tokenizer.encode(letter)})
    draw = random.Random(1)
    each = np.repeat(np.arange(bundle.config.vocab_size, dtype=np.uint32)[:, None], 2, axis=1)
    for letter in letters:
        each[letter] = draw.sample(letters, 2)
    return Shortlist(np.array(letters[:2], dtype=np.uint32), each)


def over_masked_logits(bundle: Bundle, src: list[int], options: SearchOptions) -> Hypothesis:
    """The best translation where the model's softmax is over the shortlist's pieces and those that CTranslate2 never leaves out."""
    engine = TorchEngine.from_bundle(bundle, "cpu")
    tokenizer, shortlist = bundle.tokenizer, bundle.shortlist
    assert shortlist is not None
    mask = torch.full((bundle.config.vocab_size,), -math.inf)
    mask[[*shortlist.candidates(src), tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id]] = 0.0
    with torch.inference_mode():
        stepper, task = engine._task([src], options, [Wish()])
        task = dataclasses.replace(task, forbidden=())
        return beam_search(lambda newest: stepper.step(newest) + mask, stepper.select, task)[0][0]


def test_a_search_looks_at_the_shortlist_alone(tmp_path: Path) -> None:
    bundle = with_shortlist(tmp_path / "narrow", narrow(load_bundle(GOLDEN)))
    ids = [bundle.tokenizer.encode(source) for source, _ in reversal_pairs(40, 5, longest=6)]
    engine = CTranslate2Engine.from_bundle(bundle)
    whole = CTranslate2Engine.from_bundle(load_bundle(GOLDEN)).translate(ids, OPTIONS)
    same = higher = again = 0
    for src, [ours], [unshortened] in zip(ids, engine.translate(ids, OPTIONS), whole, strict=True):
        expected = over_masked_logits(bundle, src, OPTIONS)
        if ours.ids == unshortened.ids and ours.log_prob == pytest.approx(unshortened.log_prob, abs=1e-4):
            again += 1  # where the limit is reached, or something forbidden turns up, the whole vocabulary is searched
            continue
        assert bundle.shortlist is not None and set(ours.ids) <= bundle.shortlist.candidates(src)
        same += ours.ids == expected.ids
        if ours.ids == expected.ids:
            assert ours.log_prob == pytest.approx(expected.log_prob, abs=1e-3)
        higher += ours.log_prob > unshortened.log_prob + 1e-4
    assert same >= 0.95 * (len(ids) - again)  # CTranslate2 stops earlier
    assert higher >= 20  # or nothing was tried


def test_a_sentence_is_searched_alone(tmp_path: Path) -> None:
    """What others in the batch may become is nothing to it."""
    bundle = with_shortlist(tmp_path / "narrow", narrow(load_bundle(GOLDEN)))
    engine = CTranslate2Engine.from_bundle(bundle)
    ids = [bundle.tokenizer.encode(source) for source, _ in reversal_pairs(30, 6)]
    together = engine.translate(ids, OPTIONS)
    assert [engine.translate([src], OPTIONS)[0] for src in ids] == together


@pytest.mark.parametrize("fields", [{"shortlist": False}, {"beam": 1}, {"nbest": 3}])
def test_the_whole_vocabulary_is_searched_where_it_is_asked_for_or_scores_are_looked_at(
    fields: dict, tmp_path: Path
) -> None:
    bundle = with_shortlist(tmp_path / "narrow", narrow(load_bundle(GOLDEN)))
    ids = [bundle.tokenizer.encode(source) for source, _ in reversal_pairs(20, 7)]
    options = dataclasses.replace(OPTIONS, **fields)
    plain = CTranslate2Engine.from_bundle(load_bundle(GOLDEN))
    assert CTranslate2Engine.from_bundle(bundle).translate(ids, options) == plain.translate(ids, options)


def test_a_command_makes_it_and_the_next_export_keeps_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pairs = reversal_pairs(300, 8)
    write_pairs(tmp_path, "text", pairs)
    one, two = tmp_path / "one", tmp_path / "two"
    corpus = str(tmp_path / "text.{src,tgt}")
    assert main(["export", "--to", "bundle", "-m", str(GOLDEN), "--shortlist", corpus, "-o", str(one)]) == 0
    assert main(["export", "--to", "bundle", "-m", str(one), "--weights", "fp32", "-o", str(two)]) == 0
    capfd.readouterr()
    assert (one / "shortlist.safetensors").read_bytes() == (two / "shortlist.safetensors").read_bytes()
    model, plain = regard.load(one, device="cpu"), regard.load(GOLDEN, device="cpu")
    assert isinstance(model.engine, CTranslate2Engine)
    lines = [source for source, _ in reversal_pairs(30, 9)]
    found = model.translate(lines)
    right = sum(a == b for a, b in zip(found, plain.translate(lines), strict=True))
    assert right >= 28  # int8 against fp32, and few candidates against all
    assert main(["translate", "-m", str(one), "--no-shortlist", "--device", "cpu", lines[0]]) == 0
    assert capfd.readouterr().out.strip() == model.translate(lines[0], shortlist=False)
    assert main(["export", "--to", "ctranslate2", "-m", str(one), "-o", str(tmp_path / "ct2")]) == 0
    written = (tmp_path / "ct2" / "vmap.txt").read_text(encoding="utf-8").splitlines()
    assert written[0].startswith("\t") and any(line.startswith("a\t") for line in written)


def test_what_cannot_be_a_shortlist_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("export", "-m", str(GOLDEN), "-o", str(tmp_path / "out"))
    assert "--shortlist is for --to bundle" in fails(capfd, *base, "--to", "ctranslate2", "--shortlist", "x.tsv")
    assert "x.tsv" in fails(capfd, *base, "--to", "bundle", "--shortlist", "x.tsv")
    assert not (tmp_path / "out").exists()
