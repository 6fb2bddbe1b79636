"""Exports bundles to ONNX. An encoder is one graph (`onnx_encoder.py`); a translation model is three over padded tensors, and one
file of weights that they share:

    encoder.onnx  decoder.onnx  decoder_step.onnx  weights.bin  tokenizer/  config.json  README.md

`decoder.onnx` scores whole translations; `decoder_step.onnx` takes one token at a time and returns its keys and values. Weights
are always stored outside the graphs, each once: a graph file is limited to 2 GB, and the two decoders share theirs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.export.onnx_encoder import write_encoder
from regard.export.padded import PaddedDecoder, PaddedEncoder, PaddedStep, prepare_for_tracing
from regard.export.verify import TOLERANCE, Samples
from regard.generate.engines.torch_engine import load_model
from regard.generate.options import forbidden_ids
from regard.models.transformer import Transformer

OPSET = 18  # from 2022: torch writes it without conversion, and every current runtime reads it
WEIGHTS = "weights.bin"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_INSIDE = 1_024  # bytes; smaller constants stay in the graph, where runtimes look for shapes and axes
_PAGE = 4_096  # bytes; weights begin at multiples of it, so that a runtime can memory-map them
_MIN_POSITIONS = 1_024  # the minimum length of a table of sinusoids
_SCORED_AT_ONCE = 4  # sentences in a batch

# The choices that are tested in graphs; other settings must be at their defaults.
_KNOWN = {"activation": ("relu", "gelu", "silu", "swiglu"), "positions": ("sinusoidal", "learned", "rotary")}

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Graph:
    """A module, example tensors to trace it with, and the names of its inputs and outputs; `sizes` names the dynamic dimensions of
    each input."""

    module: nn.Module
    example: tuple[Any, ...]
    sizes: tuple[Any, ...]
    inputs: list[str]
    outputs: list[str]


def write(bundle: Bundle, folder: Path, weights: str, samples: Samples) -> list[list[float]]:
    """Write the bundle's graphs into `folder` and score the samples with them in ONNX Runtime."""
    if weights != "fp32":
        raise UserError(f"--weights must be fp32 for --to onnx, but is {weights!r}")
    if bundle.config.decoder_stack is None:
        require_packages(("onnx", "onnxruntime"))
        return write_encoder(bundle, folder, samples)
    if unknown := bundle.config.unsupported(("output_bias",), _KNOWN):
        raise UserError(f"{unknown} cannot be exported to ONNX yet; use the bundle itself")
    require_packages(_PACKAGES)
    model = load_model(bundle)
    prepare_for_tracing(model, longest_table(bundle))
    graphs = make_graphs(model)
    with torch.no_grad():
        save_graphs({name: trace(graph) for name, graph in graphs.items()}, folder)
    settings = make_settings(bundle, graphs)
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(make_readme(bundle), encoding="utf-8")
    bundle.tokenizer.save(folder / "tokenizer")
    return score(folder, settings, samples, TOLERANCE[weights])


def require_packages(names: Sequence[str]) -> None:
    """Refuse the export if one of its packages is missing, before anything slow is done."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(
                f"--to onnx needs the package {name}, which cannot be imported ({error}); pip install 'regard[export]'"
            ) from None


# --- the graphs ---


def longest_table(bundle: Bundle) -> int:
    """The length of the table of sinusoids. Regard's own grows on demand; one in a file cannot."""
    return max(_MIN_POSITIONS, 2 * (bundle.max_length + bundle.decode.max_extra + 1))


def max_positions(bundle: Bundle) -> int | None:
    """The most tokens that either side may have; None for no limit."""
    return longest_table(bundle) if bundle.config.positions == "sinusoidal" else bundle.config.longest


def cache_names(kind: str, config: ModelConfig) -> list[str]:
    """Such as past_key_0, past_value_0, past_key_1, ..."""
    return [f"{kind}_{part}_{number}" for number in range(config.decoder_layers) for part in ("key", "value")]


def make_graphs(model: Transformer) -> dict[str, Graph]:
    """Encoder, decoder and decoder step. The examples' sizes are arbitrary, but none is 1, which torch would make a constant."""
    config = model.config
    cross, past, present = (cache_names(kind, config) for kind in ("cross", "past", "present"))
    source = torch.zeros(2, 5, dtype=torch.int64)
    target = torch.zeros(2, 3, dtype=torch.int64)
    memory = torch.zeros(2, 5, config.d_model)
    cross_example = [torch.zeros(2, config.kv_heads, 5, config.head_width) for _ in cross]
    past_example = [torch.zeros(2, config.kv_heads, 4, config.head_width) for _ in past]
    src, tgt, new = ({0: "batch", 1: name} for name in ("src_len", "tgt_len", "new_len"))
    cross_sizes, past_sizes = ([{0: "batch", 2: name} for _ in cross] for name in ("src_len", "past_len"))
    return {
        "encoder": Graph(
            PaddedEncoder(model),
            (source, source.clone()),
            (src, src),
            ["input_ids", "attention_mask"],
            ["memory", *cross],
        ),
        "decoder": Graph(
            PaddedDecoder(model),
            (target, memory, source),
            (tgt, src, src),
            ["input_ids", "memory", "attention_mask"],
            ["logits"],
        ),
        "decoder_step": Graph(
            PaddedStep(model),
            (target, source, cross_example, past_example),
            (new, src, cross_sizes, past_sizes),
            ["input_ids", "attention_mask", *cross, *past],
            ["logits", *present],
        ),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's messages about itself while it exports."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)  # it warns that torchvision is not installed
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name: .* shares the same shape constraints", UserWarning)
            yield
    finally:
        registration.setLevel(level)


def trace(graph: Graph) -> Any:
    """The graph as an onnx_ir model that still shares the weights of the module."""
    with _quiet():
        program = torch.onnx.export(
            graph.module.eval(),
            graph.example,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=graph.inputs,
            output_names=graph.outputs,
            dynamic_shapes=graph.sizes,
        )
    assert program is not None
    model = program.model
    for node in model.graph:
        node.metadata_props.clear()  # source locations on this machine
    return model


def save_graphs(graphs: dict[str, Any], folder: Path) -> None:
    """Write the graphs, and all weights into one file, those that graphs share once."""
    import onnx_ir

    places: dict[bytes, int] = {}
    with (folder / WEIGHTS).open("wb") as file:
        for name, model in graphs.items():
            for value in model.graph.initializers.values():
                tensor = value.const_value
                if tensor.nbytes < _INSIDE:
                    continue
                content = tensor.tobytes()
                key = hashlib.sha256(content).digest()
                if key not in places:
                    file.write(bytes(-file.tell() % _PAGE))
                    places[key] = file.tell()
                    file.write(content)
                value.const_value = onnx_ir.ExternalTensor(
                    WEIGHTS,
                    places[key],
                    tensor.nbytes,
                    tensor.dtype,
                    shape=tensor.shape,
                    name=value.name,
                    base_dir=folder,
                )
            file.flush()
            onnx_ir.save(model, folder / f"{name}.onnx")


# --- the other files ---


def make_settings(bundle: Bundle, graphs: dict[str, Graph]) -> dict[str, Any]:
    """The content of config.json."""
    tokenizer, config = bundle.tokenizer, bundle.config
    return {
        "exported_by": "regard",
        "source": bundle.source,
        "target": bundle.target,
        "opset": OPSET,
        "unk_id": tokenizer.unk_id,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id if tokenizer.pad_id >= 0 else tokenizer.eos_id,
        "forbidden_ids": sorted(set(forbidden_ids(tokenizer))),
        "vocab_size": config.vocab_size,
        "decoder_layers": config.decoder_layers,
        "kv_heads": config.kv_heads,
        "d_head": config.head_width,
        "max_length": bundle.max_length,
        "max_extra": bundle.decode.max_extra,
        "max_positions": max_positions(bundle),
        "tokenizer": tokenizer_files(tokenizer),
        **(
            {"target_tags": {one: tokenizer.target_tag(one)[0] for one in tokenizer.targets}}
            if tokenizer.targets
            else {}
        ),
        "graphs": {
            name: {"file": f"{name}.onnx", "inputs": graph.inputs, "outputs": graph.outputs}
            for name, graph in graphs.items()
        },
    }


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The sentencepiece model of each side; for imported models, the vocabulary of each side, too."""
    source, target = ("joint", "joint") if tokenizer.kind == "joint" else ("source", "target")
    files = {"source": f"tokenizer/{source}.model", "target": f"tokenizer/{target}.model"}
    if tokenizer.vocabulary is not None:
        names = list(tokenizer.vocabulary.files())
        files |= {"source_vocab": f"tokenizer/{names[0]}", "target_vocab": f"tokenizer/{names[-1]}"}
    return files


_ENCODE = """\
def encode(text):
    return source.encode(text)

def decode(ids):
    return target.decode(ids).strip()
"""

# A model for several directions is told the target language by the first piece of the source.
_ENCODE_WITH_TAG = """\
tag = config["target_tags"][{target!r}]  # {tags}

def encode(text):
    return [tag] + source.encode(text)

def decode(ids):
    return target.decode(ids).strip()
"""

# Imported models have their own ids for pieces, and may expect a code for the target language in front: `>>deu<< ...`.
_ENCODE_WITH_VOCABULARY = """\
known, written = (read(config["tokenizer"][side]) for side in ("source_vocab", "target_vocab"))
pieces = {i: piece for piece, i in written.items()}

def encode(text):
    end = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
    found = [text[:end]] * bool(end) + source.encode(text[end:], out_type=str)
    return [known.get(piece, config["unk_id"]) for piece in found]

def decode(ids):
    return target.decode_pieces([pieces[i] for i in ids if i in pieces and i != config["unk_id"]]).replace("\\u2581", " ").strip()
"""

_README = """\
# {languages}

A translation model for ONNX Runtime, exported by Regard. With `pip install onnxruntime sentencepiece`, this translates the lines
of standard input, greedily, when it is run in this folder:

```python
import json, pathlib, sys
import numpy as np, onnxruntime, sentencepiece

def read(name):
    return json.loads(pathlib.Path(name).read_text(encoding="utf-8"))

config = read("config.json")
source, target = (sentencepiece.SentencePieceProcessor(model_file=config["tokenizer"][side]) for side in ("source", "target"))
encoder, decoder = (onnxruntime.InferenceSession(f"{{name}}.onnx", providers=["CPUExecutionProvider"])
                    for name in ("encoder", "decoder_step"))
outputs, inputs = config["graphs"]["encoder"]["outputs"], config["graphs"]["decoder_step"]["inputs"]
past = [name for name in inputs if name.startswith("past_")]

{encode}
def translate(text):
    tokens, output = encode(text) + [config["eos_id"]], [config["bos_id"]]
    sentence = {{"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones((1, len(tokens)), np.int64)}}
    feed = sentence | dict(zip(outputs, encoder.run(None, sentence)))
    feed |= {{name: np.zeros((1, config["kv_heads"], 0, config["d_head"]), np.float32) for name in past}}
    limit = min(len(tokens) - 1 + config["max_extra"], (config["max_positions"] or sys.maxsize) - 1)
    while len(output) <= limit:
        feed["input_ids"] = np.array([output[-1:]], np.int64)
        logits, *present = decoder.run(None, {{name: feed[name] for name in inputs}})
        feed |= dict(zip(past, present))
        logits[..., config["forbidden_ids"]] = -np.inf
        output.append(int(logits[0, -1].argmax()))
        if output[-1] == config["eos_id"]:
            break
    return decode([token for token in output[1:] if token != config["eos_id"]])

for line in sys.stdin:
    print(translate(line.strip()) if line.strip() else "")
```

| graph | in | out |
|---|---|---|
| `encoder.onnx` | `input_ids`, `attention_mask` | `memory`; `cross_key_N`, `cross_value_N` for each decoder layer |
| `decoder_step.onnx` | `input_ids`, `attention_mask`, `cross_*`, `past_*` | `logits`; `present_*`, the next step's `past_*` |
| `decoder.onnx` | `input_ids`, `memory`, `attention_mask` | `logits` of all positions of a translation at once |

- `input_ids` and `attention_mask` are int64, (batch, length), all others float32. Keys and values are (batch, {kv_heads},
  length, {d_head}); before the first step `past_*` have length 0. Batch and lengths are dynamic.
- `attention_mask` is that of the source in all three: 1 for a token, 0 for padding (`pad_id`), which is on the right.
- A source ends with `eos_id`, a translation begins with `bos_id`; `forbidden_ids` are never chosen.
- Lines were at most `max_length` = {max_length} tokens long in training. Regard cuts longer ones at a clause; the script does not.
{limit}- For beam search, repeat `cross_*` and `attention_mask` for the hypotheses of a sentence, and reorder `past_*` with them.
- `weights.bin` belongs to all three graphs: keep them in one folder.
"""


def _encode_code(bundle: Bundle) -> str:
    if targets := bundle.tokenizer.targets:
        tags = f"the language to translate into: {', '.join(targets)}"
        return _ENCODE_WITH_TAG.format(target=bundle.target, tags=tags)
    return _ENCODE if bundle.tokenizer.vocabulary is None else _ENCODE_WITH_VOCABULARY


def make_readme(bundle: Bundle) -> str:
    """How to translate with the folder, without Regard or torch."""
    config, positions = bundle.config, max_positions(bundle)
    limit = "" if positions is None else f"- Neither side may have more than `max_positions` = {positions} tokens.\n"
    return _README.format(
        languages=bundle.languages,
        encode=_encode_code(bundle),
        kv_heads=config.kv_heads,
        d_head=config.head_width,
        max_length=bundle.max_length,
        limit=limit,
    )


# --- checking the graphs ---


def open_graph(folder: Path, name: str) -> Any:
    """An ONNX Runtime session with as many threads as torch may use."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])


def score(folder: Path, settings: dict[str, Any], samples: Samples, tolerance: float) -> list[list[float]]:
    """The samples' log-probabilities as `decoder.onnx` computes them; `decoder_step.onnx` must agree."""
    encoder, decoder, step = (open_graph(folder, name) for name in ("encoder", "decoder", "decoder_step"))
    scores: list[list[float]] = []
    for start in range(0, len(samples.src), _SCORED_AT_ONCE):
        src, tgt = samples.src[start : start + _SCORED_AT_ONCE], samples.tgt[start : start + _SCORED_AT_ONCE]
        ids, mask = pad([[*sentence, settings["eos_id"]] for sentence in src], settings["pad_id"])
        tgt_in, _ = pad([[settings["bos_id"], *sentence] for sentence in tgt], settings["pad_id"])
        memory, *cross = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
        logits = decoder.run(None, {"input_ids": tgt_in, "memory": memory, "attention_mask": mask})[0]
        log_probs = log_softmax(logits)
        difference = float(np.abs(log_softmax(run_steps(step, settings, tgt_in, mask, cross)) - log_probs).max())
        if not difference <= tolerance:
            raise RegardError(
                f"decoder_step.onnx does not compute what decoder.onnx does: log-probabilities differ by up to "
                f"{difference:.3g}, and only {tolerance:.3g} would be rounding; nothing was written"
            )
        for row, sentence in zip(log_probs, tgt, strict=True):
            labels = [*sentence, settings["eos_id"]]
            scores.append([float(row[place, label]) for place, label in enumerate(labels)])
    return scores


def run_steps(step: Any, settings: dict[str, Any], tgt_in: _Array, mask: _Array, cross: Sequence[_Array]) -> _Array:
    """Logits of `decoder_step.onnx`, given these tokens one at a time: (batch, length, vocab_size)."""
    names = settings["graphs"]["decoder_step"]["inputs"]
    past = [np.zeros((len(tgt_in), settings["kv_heads"], 0, settings["d_head"]), np.float32) for _ in cross]
    parts = []
    for place in range(tgt_in.shape[1]):
        values = (tgt_in[:, place : place + 1], mask, *cross, *past)
        logits, *past = step.run(None, dict(zip(names, values, strict=True)))
        parts.append(logits)
    return np.concatenate(parts, axis=1)


def pad(sentences: Sequence[Sequence[int]], pad_id: int) -> tuple[_Array, _Array]:
    """(sentences, longest) ids, and a mask that is 1 where there is a token."""
    longest = max(len(sentence) for sentence in sentences)
    ids = np.full((len(sentences), longest), pad_id, np.int64)
    mask = np.zeros_like(ids)
    for number, sentence in enumerate(sentences):
        ids[number, : len(sentence)] = sentence
        mask[number, : len(sentence)] = 1
    return ids, mask


def log_softmax(logits: _Array) -> _Array:
    """Over the last dimension, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: _Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
