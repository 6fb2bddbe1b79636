"""ONNX: the graphs compute what Regard computes at any batch and length, and the README is enough to translate with them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sentencepiece
import torch
from torch import Tensor

from regard.bundle import Bundle, load_bundle
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Special, Vocabulary
from regard.errors import RegardError, UserError
from regard.export import export
from regard.export import onnx as exporter
from regard.export.padded import PaddedDecoder, PaddedEncoder, PaddedStep, prepare_for_tracing
from regard.export.verify import make_samples
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions
from regard.models.transformer import Transformer
from tests.build import SWITCHES, build, pack, pad, random_sentences, tiny_config
from tests.tiny import reversal_pairs, save_model

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"
GRAPHS = ("encoder", "decoder", "decoder_step")

# To trace a graph takes seconds, so that a few models have all the switches between them; the first one is the golden bundle.
# The modules that are traced are compared with the model one switch at a time.
EXPORTED: dict[str, dict[str, Any]] = {
    "golden": {"norm_position": "pre", "encoder_layers": 1, "decoder_layers": 1},
    "post-norm": {"activation": "gelu", "output_bias": True, "encoder_layers": 1, "decoder_layers": 2},
    "modern": {**SWITCHES["modern"], "encoder_layers": 1, "decoder_layers": 1},
    "post-norm-modern": {
        **SWITCHES["post-norm-modern"],
        "activation": "silu",
        "max_positions": 64,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
}

Exports = Callable[[str], tuple[Bundle, Path]]


def make_bundle(folder: Path, switches: dict[str, Any]) -> Bundle:
    tokenizer = load_bundle(GOLDEN).tokenizer
    config = tiny_config(vocab_size=tokenizer.vocab_size, **switches)
    return save_model(folder, build(config), tokenizer)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The bundle of a name in EXPORTED and the folder that it was exported to, once for all tests."""
    made: dict[str, tuple[Bundle, Path]] = {}

    def get(name: str) -> tuple[Bundle, Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            bundle = load_bundle(GOLDEN) if name == "golden" else make_bundle(folder / "bundle", EXPORTED[name])
            export(bundle, "onnx", folder / "onnx")
            made[name] = bundle, folder / "onnx"
        return made[name]

    return get


class Runtime:
    """An exported folder in ONNX Runtime; grids of ids go in, log-probabilities come out."""

    def __init__(self, folder: Path) -> None:
        self.settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.encoder, self.decoder, self.step = (exporter.open_graph(folder, name) for name in GRAPHS)

    def score(self, src: np.ndarray, mask: np.ndarray, tgt_in: np.ndarray) -> np.ndarray:
        memory = self.encoder.run(["memory"], {"input_ids": src, "attention_mask": mask})[0]
        feed = {"input_ids": tgt_in, "memory": memory, "attention_mask": mask}
        return exporter.log_softmax(self.decoder.run(None, feed)[0])

    def score_in_parts(self, src: np.ndarray, mask: np.ndarray, tgt_in: np.ndarray, parts: list[int]) -> np.ndarray:
        """As `score`, with `decoder_step`, which gets so many tokens at a time."""
        assert sum(parts) == tgt_in.shape[1]
        cross = self.encoder.run(None, {"input_ids": src, "attention_mask": mask})[1:]
        past = [np.zeros((len(src), self.settings["kv_heads"], 0, self.settings["d_head"]), np.float32)] * len(cross)
        found, start = [], 0
        for part in parts:
            values = [np.ascontiguousarray(tgt_in[:, start : start + part]), mask, *cross, *past]
            names = self.settings["graphs"]["decoder_step"]["inputs"]
            logits, *past = self.step.run(None, dict(zip(names, values, strict=True)))
            found.append(logits)
            start += part
        assert past[-1].shape[2] == start
        return exporter.log_softmax(np.concatenate(found, axis=1))


def grids(runtime: Runtime, src: list[list[int]], tgt: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source ids, mask, and what goes into the decoder."""
    settings = runtime.settings
    ids, mask = exporter.pad([[*sentence, settings["eos_id"]] for sentence in src], settings["pad_id"])
    return ids, mask, exporter.pad([[settings["bos_id"], *sentence] for sentence in tgt], settings["pad_id"])[0]


def worst(found: np.ndarray, expected: list[list[float]], tgt: list[list[int]], eos_id: int) -> float:
    """The largest difference between log-probabilities of all pieces and the engine's, of the pieces that are there."""
    differences = [
        abs(row[place, label] - value)
        for row, values, sentence in zip(found, expected, tgt, strict=True)
        for place, (label, value) in enumerate(zip([*sentence, eos_id], values, strict=True))
    ]
    assert len(differences) == sum(len(sentence) + 1 for sentence in tgt)
    return float(max(differences))


# --- The modules that are traced ---


def padded_logits(model: Transformer, src: list[Tensor], tgt: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the padded decoder and of padded steps, of all places that hold a token."""
    prepare_for_tracing(model, 32)
    (ids, mask), (tgt_in, valid) = pad(src), pad(tgt)
    memory, *cross = PaddedEncoder(model)(ids, mask.long())
    whole = PaddedDecoder(model)(tgt_in, memory, mask.long())
    past = [torch.zeros(len(src), model.config.kv_heads, 0, model.config.head_width) for _ in cross]
    parts = []
    for token in tgt_in.split(1, dim=1):
        logits, *past = PaddedStep(model)(token, mask.long(), cross, past)
        parts.append(logits)
    return whole[valid], torch.cat(parts, dim=1)[valid]


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@torch.no_grad()
def test_padded_equals_packed(switches: dict[str, Any]) -> None:
    model = build(tiny_config(**switches))
    src, tgt = random_sentences([5, 1, 9], seed=1), random_sentences([4, 7, 2], seed=2)
    expected = model(*pack(src), *pack(tgt))
    whole, stepwise = padded_logits(model, src, tgt)
    torch.testing.assert_close(whole, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(stepwise, expected, atol=2e-5, rtol=0)


@torch.no_grad()
def test_padded_modules_hold_the_weights_of_the_model_and_no_others() -> None:
    model = build(tiny_config())
    for module in (PaddedEncoder(model), PaddedDecoder(model), PaddedStep(model)):
        assert {id(parameter) for parameter in module.parameters()} == {
            id(parameter) for parameter in model.parameters()
        }


@torch.no_grad()
def test_a_sentence_of_padding_alone_gives_numbers() -> None:
    model = build(tiny_config())
    ids, mask = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 1, 1], [0, 0, 0]])
    memory, *_ = PaddedEncoder(model)(ids, mask)
    assert bool(PaddedDecoder(model)(ids, memory, mask).isfinite().all())


# --- The graphs ---


def test_the_exported_models_have_every_switch_between_them() -> None:
    depths = (
        "encoder_layers",
        "decoder_layers",
    )  # more than one, and not as many on both sides, is all that there is to them
    wanted = {
        (field, value) for switches in SWITCHES.values() for field, value in switches.items() if field not in depths
    }
    defaults = {field: getattr(ModelConfig(345), field) for field, _ in wanted}
    had = {(field, value) for switches in EXPORTED.values() for field, value in (defaults | switches).items()}
    assert (wanted | set(defaults.items())) - had == {("max_positions", 1024)} - had
    golden = load_bundle(GOLDEN).config
    assert all(getattr(golden, field) == value for field, value in (defaults | EXPORTED["golden"]).items())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize(("src_lengths", "tgt_lengths"), [([11], [6]), ([1], [0]), ([9, 2, 17], [4, 12, 1])])
def test_onnx_runtime_scores_as_the_engine_does(
    exports: Exports, name: str, src_lengths: list[int], tgt_lengths: list[int]
) -> None:
    """At batches and lengths that are not those of the tracing, with padding on either side."""
    bundle, folder = exports(name)
    src, tgt = (
        [sentence.tolist() for sentence in random_sentences(lengths, bundle.config.vocab_size, seed)]
        for seed, lengths in enumerate((src_lengths, tgt_lengths))
    )
    expected = TorchEngine.from_bundle(bundle, "cpu").score(src, tgt)
    runtime = Runtime(folder)
    inputs = grids(runtime, src, tgt)
    length = inputs[2].shape[1]
    found = runtime.score(*inputs)
    assert worst(found, expected, tgt, bundle.tokenizer.eos_id) < 1e-4
    for parts in ([1] * length, [length // 2, 1, length - length // 2 - 1] if length > 3 else [length]):
        stepwise = runtime.score_in_parts(*inputs, parts)
        np.testing.assert_allclose(stepwise, found, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_padding_on_the_right_changes_nothing(exports: Exports, name: str) -> None:
    _, folder = exports(name)
    runtime = Runtime(folder)
    ids, mask, tgt_in = grids(runtime, [[100, 101, 102]], [[103, 104]])
    alone = runtime.score(ids, mask, tgt_in)
    for filler in (runtime.settings["pad_id"], 120):
        wider = np.pad(ids, ((0, 0), (0, 5)), constant_values=filler)
        padded = runtime.score(wider, np.pad(mask, ((0, 0), (0, 5))), tgt_in)
        np.testing.assert_allclose(padded, alone, atol=1e-5, rtol=0)
        unmasked = runtime.score(wider, np.ones_like(wider), tgt_in)
        assert np.abs(unmasked - alone).max() > 1e-3, "without a mask, padding is text"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_graphs_are_valid_and_plain(exports: Exports, name: str) -> None:
    """Nothing but ONNX's own operators, names and sizes as config.json says, and no word of the machine they come from."""
    bundle, folder = exports(name)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for graph in GRAPHS:
        path = folder / f"{graph}.onnx"
        onnx.checker.check_model(str(path), full_check=True)
        proto = onnx.load(str(path), load_external_data=False)
        assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", exporter.OPSET)]
        assert {node.domain for node in proto.graph.node} == {""}
        assert [value.name for value in proto.graph.input] == settings["graphs"][graph]["inputs"]
        assert [value.name for value in proto.graph.output] == settings["graphs"][graph]["outputs"]
        for value in proto.graph.input:
            free = {size.dim_param for size in value.type.tensor_type.shape.dim if size.dim_param}
            assert free <= {"batch", "src_len", "tgt_len", "new_len", "past_len"} and len(free) == 2, value.name
        assert str(Path(exporter.__file__).parents[1]).encode() not in path.read_bytes()
    assert settings["max_positions"] == {"sinusoidal": 1024, "learned": 64, "rotary": None}[bundle.config.positions]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_every_weight_is_stored_once_and_outside_of_the_graphs(exports: Exports, name: str) -> None:
    """So that a model of any size can be exported: a file in ONNX's format itself may not have more than 2 GB."""
    bundle, folder = exports(name)
    places: dict[str, set[int]] = {}
    stored: dict[int, int] = {}
    for graph in GRAPHS:
        proto = onnx.load(str(folder / f"{graph}.onnx"), load_external_data=False)
        assert len(proto.SerializeToString()) < 100_000
        for tensor in proto.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                assert entries["location"] == exporter.WEIGHTS
                places.setdefault(tensor.name, set()).add(int(entries["offset"]))
                stored[int(entries["offset"])] = int(entries["length"])
            else:
                assert len(tensor.raw_data) < 1024
    model = build(bundle.config)
    large = {name: tensor for name, tensor in model.state_dict().items() if tensor.nbytes >= 1024}
    tables = 1024 * bundle.config.d_model * 4 if bundle.config.positions == "sinusoidal" else 0
    assert sum(stored.values()) == sum(tensor.nbytes for tensor in large.values()) + tables
    if bundle.config.tie_embeddings:
        assert len(places["model.embedding.weight"]) == 1
    assert (folder / exporter.WEIGHTS).stat().st_size == max(offset + length for offset, length in stored.items())


@pytest.mark.slow
def test_a_sentence_longer_than_the_table_of_positions_is_refused(exports: Exports) -> None:
    _, folder = exports("post-norm-modern")
    runtime = Runtime(folder)
    assert runtime.score(*grids(runtime, [[100] * 63], [[100] * 63])).shape == (1, 64, 345)
    with pytest.raises(Exception, match=r"(?i)out of.*bound|invalid ind"):
        runtime.score(*grids(runtime, [[100] * 64], [[100]]))


# --- The README ---

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "regard"):
            raise ModuleNotFoundError("blocked: " + name)

sys.meta_path.insert(0, Block())
"""


def script_of(folder: Path) -> str:
    (script,) = re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    return str(script)


def run_script(folder: Path, script: str, lines: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + script],
        cwd=folder,
        input="\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["golden", "modern"])
def test_the_script_of_the_readme_translates_as_the_engine_does(exports: Exports, name: str) -> None:
    bundle, folder = exports(name)
    lines = [source for source, _ in reversal_pairs(6, 5)]
    if name == "golden":
        known = json.loads(GOLDEN.with_suffix(".json").read_text(encoding="utf-8"))
        lines += [pair["source"] for pair in known]
    found = run_script(folder, script_of(folder), lines)
    options = SearchOptions(beam=1, max_extra=bundle.decode.max_extra)
    ids = [bundle.tokenizer.encode(line) for line in lines]
    hypotheses = TorchEngine.from_bundle(bundle, "cpu").translate(ids, options)
    texts = [bundle.tokenizer.decode(own[0].ids).strip() for own in hypotheses]
    # Random weights write bytes that are no text, and sentencepiece and Regard have not as many signs for those.
    plain = [re.sub("\ufffd+", "\ufffd", line) for line in found]
    assert plain == [re.sub("\ufffd+", "\ufffd", text) if line else "" for line, text in zip(lines, texts, strict=True)]
    assert len(set(plain)) > len(lines) // 2
    if name == "golden":
        assert found[-len(known) :] == [pair["translation"] for pair in known]
        assert "c b a" in found


@pytest.mark.slow
def test_the_script_of_the_readme_needs_what_it_imports(exports: Exports) -> None:
    _, folder = exports("golden")
    with pytest.raises(AssertionError, match="blocked: torch"):
        run_script(folder, "import torch\n" + script_of(folder), ["a"])


def imported_tokenizer() -> Tokenizer:
    """Two sentencepiece models and a vocabulary that numbers their pieces otherwise, and lacks one."""

    def learn(lines: list[str]) -> bytes:
        writer = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=writer, vocab_size=36, model_type="unigram", minloglevel=2
        )
        return writer.getvalue()

    models = [learn([f"{word} {text}" for text, _ in reversal_pairs(200, 1)]) for word in ("cat", "Katze")]
    vocabularies = []
    for number, model in enumerate(models):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
        ordered = ["</s>", "<unk>", ">>deu<<", *sorted(pieces, reverse=bool(number))[1:], "<pad>"]
        vocabularies.append({piece: i for i, piece in enumerate(ordered)})
    source, target = vocabularies
    special = Special(unk=1, start=target["<pad>"], end=0, pad=target["<pad>"], forbidden=(target["<pad>"],))
    return Tokenizer(models, Vocabulary(source, target, special, max(len(source), len(target))))


@pytest.mark.parametrize("kind", ["joint", "imported"])
def test_the_script_of_the_readme_tokenizes_as_regard_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    golden = load_bundle(GOLDEN)
    tokenizer = golden.tokenizer if kind == "joint" else imported_tokenizer()
    golden.__dict__["tokenizer"] = tokenizer
    tokenizer.save(tmp_path / "tokenizer")
    settings = exporter.make_settings(golden, exporter.make_graphs(build(golden.config)))
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^def translate", exporter.make_readme(golden), re.S | re.M)
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(script, names)
    for line in ["a b c", "cat", "Käse a", ">>deu<< a b", ">>deu a"]:
        assert names["encode"](line) == tokenizer.encode(line)
        ids = tokenizer.encode(line, "target")
        assert names["decode"](ids) == tokenizer.decode(ids).strip()
    if kind == "imported":
        assert names["encode"](">>deu<< a")[0] == 2 and names["encode"]("¤")[-1] == 1


# --- What is refused ---


@pytest.fixture
def copied(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> tuple[Bundle, Callable[[Callable[[Path], None]], None]]:
    """The golden bundle, and a way to have its next export write what was written before, damaged by a function."""
    bundle, exported = exports("golden")

    def damage_with(damage: Callable[[Path], None]) -> None:
        def save_graphs(graphs: dict[str, Any], folder: Path) -> None:
            for name in (*(f"{graph}.onnx" for graph in GRAPHS), exporter.WEIGHTS):
                shutil.copy(exported / name, folder / name)
            damage(folder)

        monkeypatch.setattr(exporter, "trace", lambda graph: None)
        monkeypatch.setattr(exporter, "save_graphs", save_graphs)

    return bundle, damage_with


def change_weights(folder: Path) -> None:
    path = folder / exporter.WEIGHTS
    numbers = np.fromfile(path, np.float32)
    numbers[::7] *= 1.01
    numbers.tofile(path)


def change_step(folder: Path) -> None:
    """Another factor in the attention of decoder_step.onnx than 1 / sqrt(d_head)."""
    proto = onnx.load(str(folder / "decoder_step.onnx"), load_external_data=False)
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and onnx.numpy_helper.to_array(tensor).tolist() == 0.25:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.2), tensor.name))
    onnx.save(proto, str(folder / "decoder_step.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_weights, "the onnx model does not compute what the original does"),
        (change_step, r"decoder_step\.onnx does not compute what decoder\.onnx does"),
    ],
)
def test_wrong_numbers_leave_nothing_behind(
    tmp_path: Path, copied: Any, damage: Callable[[Path], None], message: str
) -> None:
    bundle, damage_with = copied
    damage_with(damage)
    with pytest.raises(RegardError, match=message):
        export(bundle, "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_undamaged_copy_is_written(tmp_path: Path, copied: Any) -> None:
    """What the two cases above differ from."""
    bundle, damage_with = copied
    damage_with(lambda folder: None)
    assert export(bundle, "onnx", tmp_path / "out").difference.largest < 1e-4
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    tokenizer = {"tokenizer/joint.model", "tokenizer/tokenizer.json"}
    assert files == {"config.json", "README.md", "weights.bin", *(f"{graph}.onnx" for graph in GRAPHS), *tokenizer}


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs the package {package}\b.*pip install 'regard\[export\]'"):
        export(load_bundle(GOLDEN), "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_other_weights_are_refused(tmp_path: Path) -> None:
    bundle = load_bundle(GOLDEN)
    with pytest.raises(UserError, match="--weights must be fp32 for --to onnx, but is 'int8'"):
        exporter.write(bundle, tmp_path, "int8", make_samples(bundle))
    assert list(tmp_path.iterdir()) == []
