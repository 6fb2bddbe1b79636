"""T5 1.1 with an output matrix of its own. transformers 5 ties it to the embedding whatever the settings say, so CTranslate2 is the
standard here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-untyped]
import pytest
import torch
from ctranslate2.converters.transformers import T5Loader  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file

from regard.bundle import load_bundle
from regard.export import export
from regard.generate.engines.torch_engine import load_model
from regard.importing.transformers import Imported, import_model
from regard.layout import SequenceLayout
from tests.families.checkpoints import PIECES, make_original


@pytest.fixture(scope="module")
def original() -> Any:
    """A model of transformers whose output matrix has been replaced."""
    model = make_original("t5-gated", tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(PIECES, 32, generator=torch.Generator().manual_seed(5)))
    model.config.tie_word_embeddings = False  # which its class does not accept, and CTranslate2 reads
    return model


@pytest.fixture(scope="module")
def imported(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """The folder as version 4 writes it."""
    folder = tmp_path_factory.mktemp("t5v11")
    original.config.save_pretrained(folder / "original")
    path = folder / "original" / "config.json"
    settings = json.loads(path.read_text())
    settings = {**settings, "tie_word_embeddings": False, "architectures": ["T5ForConditionalGeneration"]}
    del settings["scale_decoder_outputs"]
    path.write_text(json.dumps(settings))
    tensors = {name: tensor.contiguous().clone() for name, tensor in original.state_dict().items()}
    save_file(tensors, folder / "original" / "model.safetensors")
    return import_model(folder / "original", folder / "bundle")


def test_import_says_why_it_is_not_compared(imported: Imported) -> None:
    assert imported.difference is None
    assert any("transformers 5 replaces T5's output matrix by its embedding" in note for note in imported.notes)
    assert not imported.bundle.config.tie_embeddings and imported.bundle.config.head_settings.logit_scale == 1.0


def test_log_probabilities_are_those_of_ctranslate2(imported: Imported, original: Any, tmp_path: Path) -> None:
    spec = T5Loader().get_model_spec(original)
    spec.register_source_vocabulary([str(i) for i in range(PIECES)])
    spec.register_target_vocabulary([str(i) for i in range(PIECES)])
    spec.config.bos_token = spec.config.decoder_start_token = "0"
    spec.config.eos_token, spec.config.unk_token = "1", "2"
    spec.config.add_source_eos = False
    spec.validate()
    (tmp_path / "ct2").mkdir()
    spec.save(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    model = load_model(load_bundle(imported.bundle.folder))
    generator = torch.Generator().manual_seed(4)
    for length in (1, 6, 17):
        src, tgt = (torch.randint(3, PIECES, (length,), generator=generator) for _ in range(2))
        [found] = translator.score_batch([[str(int(i)) for i in src]], [[str(int(i)) for i in tgt]])
        target = torch.cat((torch.tensor([0]), tgt))
        layouts = [SequenceLayout.from_lengths([len(one)]) for one in (src, target)]
        with torch.no_grad():
            log_probs = model(src, layouts[0], target, layouts[1]).log_softmax(-1)
        wanted = torch.cat((tgt, torch.tensor([1])))
        ours = log_probs.gather(1, wanted[:, None])[:, 0]
        torch.testing.assert_close(ours, torch.tensor(found.log_probs), atol=2e-5, rtol=1e-5)


def test_exported_again_the_tensors_are_the_same_to_the_bit(imported: Imported, tmp_path: Path) -> None:
    report = export(imported.bundle, "transformers", tmp_path / "back")
    assert report.difference.largest < 1e-4 and "version 4 reads the one that was written" in report.notes[0]
    before, after = (
        load_file(folder / "model.safetensors")
        for folder in (imported.bundle.folder.parent / "original", tmp_path / "back")
    )
    copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    assert before.keys() - copies == after.keys() and all(torch.equal(before[name], after[name]) for name in after)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["tie_word_embeddings"] is False
