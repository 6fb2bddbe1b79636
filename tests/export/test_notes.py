"""What Regard does around a model and other programs do not is said when the model leaves."""

from __future__ import annotations

from pathlib import Path

from regard.data.tokenizer import Tokenizer
from regard.export import export
from regard.recipe import DecodeRecipe
from tests.build import build, tiny_config
from tests.tiny import save_model


def test_an_export_says_what_stays_behind(tmp_path: Path) -> None:
    lines = ["see the page for more", "mehr steht auf der Seite"] * 20
    for protects in (False, True):
        tokenizer = Tokenizer.train(lines, 400, tmp_path / f"tokenizer-{protects}", protects=protects)
        model = build(tiny_config(vocab_size=tokenizer.vocab_size))
        decode = DecodeRecipe(max_extra=10, guard=protects)
        bundle = save_model(tmp_path / f"bundle-{protects}", model, tokenizer, decode=decode)
        notes = export(bundle, "ctranslate2", tmp_path / f"ctranslate2-{protects}").notes
        assert [note.split(" ")[0] for note in notes] == (["this", "decode.guard"] if protects else [])
        assert export(bundle, "bundle", tmp_path / f"int8-{protects}").notes == ()  # Regard goes on doing it
