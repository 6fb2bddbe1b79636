"""The contenders of the decoding benchmark: Hugging Face generate, CTranslate2 and Regard's engines, all with one bundle's
weights.

All get source ids and return the ids of the best translation. The searches are as similar as possible: the same beam, the
same value of the length penalty (Regard divides a log-probability by ((5 + n) / 6)^alpha, the others by n^alpha),
`early_stopping` off, at most 50 tokens more than the source (for the peers, one limit for a whole batch). Only Regard
forbids control symbols, which costs the peers nothing, and a trained model does not produce them.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.bundle import Bundle, load_bundle, load_weights
from regard.generate.options import Engine, SearchOptions

Ids = list[int]
Batches = Sequence[Sequence[Ids]]  # sentences of similar lengths, without end tokens


class Session(Protocol):
    """A contender with the model loaded."""

    def translate(self, batches: Batches, size: int, beam: int, penalty: float) -> list[Ids]:
        """The best translation of each sentence, in order, without start and end tokens; at most `size` are computed together."""


@dataclass(frozen=True)
class Contender:
    name: str
    open: Callable[[Bundle, torch.device], Session]
    module: str = "torch"  # packages that it needs
    devices: tuple[str, ...] = ("cpu", "cuda")
    beams: tuple[int, ...] = ()  # those that it has a way of its own for; none: all
    optional: bool = False  # only on request

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot take part, if it cannot."""
        if device.type not in self.devices:
            return f"is not for {device.type}"
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed"
        return None


def flat(batches: Batches) -> list[Ids]:
    return [ids for batch in batches for ids in batch]


# --- Hugging Face ---


def hf_model(bundle: Bundle, device: torch.device) -> Any:
    """The bundle's weights in transformers: fp16 on CUDA, else fp32, with torch's fused attention.

    Marian is the paper's model there; Pegasus is the same with pre-norm.
    """
    from regard.export.transformers import marian_settings, marian_tensors, max_positions, refuse_unknown

    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config, weights = bundle.config, load_weights(bundle)
    refuse_unknown(replace(config, norm_position="post"))
    tensors = marian_tensors(weights, config)
    settings = marian_settings(config, bundle.tokenizer, max_positions(bundle))
    if config.norm_position == "post":
        model = transformers.MarianMTModel(transformers.MarianConfig(**settings, attn_implementation="sdpa"))
    elif config.tie_embeddings:
        tensors |= pegasus_norms(weights)
        del settings["share_encoder_decoder_embeddings"]
        pegasus = transformers.PegasusConfig(**settings, attn_implementation="sdpa")
        model = transformers.PegasusForConditionalGeneration(pegasus)
    else:
        raise ValueError("transformers' Pegasus has one matrix for both embeddings")
    found = model.load_state_dict(tensors, strict=False)
    # What the loaded tensors stand for too, and the sinusoids, which it computes by itself.
    expected = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")
    unknown = [name for name in found.missing_keys if not name.endswith(expected)] + found.unexpected_keys
    if unknown:
        raise RuntimeError(f"transformers has other names for the model's weights: {unknown}")
    model.tie_weights()
    return model.to(device, torch.float16 if device.type == "cuda" else torch.float32).eval()


def pegasus_norms(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The norms after the last layers, in the order of dimensions that Marian and Pegasus have (`regard.families.marian`)."""
    norms = {}
    for stack in ("encoder", "decoder"):
        for kind in ("weight", "bias"):
            ours = weights[f"{stack}.final_norm.{kind}"]
            norms[f"model.{stack}.layer_norm.{kind}"] = torch.cat((ours[0::2], ours[1::2]))
    return norms


class HuggingFace:
    """One call of `generate` for each batch; `static`: with a cache of a fixed shape, for which transformers compiles its
    greedy step on CUDA; lengths are then rounded up, so that it need not compile for each."""

    def __init__(self, bundle: Bundle, device: torch.device, static: bool = False) -> None:
        self.model, self.device, self.static = hf_model(bundle, device), device, static
        self.eos_id, self.pad_id = bundle.tokenizer.eos_id, bundle.tokenizer.pad_id
        self.max_extra = bundle.decode.max_extra

    @torch.inference_mode()
    def translate(self, batches: Batches, size: int, beam: int, penalty: float) -> list[Ids]:
        results = []
        for batch in batches:
            assert len(batch) <= size
            sources = [torch.tensor([*ids, self.eos_id]) for ids in batch]
            longest = max(map(len, sources))
            longest += -longest % (32 if self.static else 1)
            src = torch.stack([F.pad(ids, (0, longest - len(ids)), value=self.pad_id) for ids in sources])
            mask = torch.stack([F.pad(torch.ones_like(ids), (0, longest - len(ids))) for ids in sources])
            found = self.model.generate(
                input_ids=src.to(self.device),
                attention_mask=mask.to(self.device),
                max_new_tokens=longest + self.max_extra,  # the ends of both sides are counted
                do_sample=False,
                num_beams=beam,
                **({"length_penalty": penalty, "early_stopping": False} if beam > 1 else {}),
                **({"cache_implementation": "static"} if self.static else {}),
            )
            results += [self._words(row) for row in found[:, 1:].tolist()]  # after the start token
        return results

    def _words(self, row: Ids) -> Ids:
        ids = row[: row.index(self.eos_id)] if self.eos_id in row else row
        return [i for i in ids if i != self.pad_id]


# --- CTranslate2 ---


class CTranslate2:
    """Called directly, sorting and cutting batches itself. A single sentence gets all cores; several batches share
    them as in Regard's engine."""

    def __init__(self, bundle: Bundle, device: torch.device, compute_type: str) -> None:
        from regard.generate.engines.ctranslate2_model import convert, vocabularies

        self.device, self.compute_type = device, compute_type
        self.max_extra = bundle.decode.max_extra
        self.source, target = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
        self.ids = {piece: i for i, piece in enumerate(target)}
        self.folder = tempfile.TemporaryDirectory(prefix="ctranslate2-")
        convert(bundle, Path(self.folder.name), "fp32")
        self.translators: dict[tuple[int, int], Any] = {}

    def _translator(self, size: int) -> Any:
        from regard.generate.engines.ctranslate2_engine import share_cores

        ctranslate2: Any = importlib.import_module("ctranslate2")

        workers, threads = (1, torch.get_num_threads()) if size == 1 else share_cores(torch.get_num_threads())
        if self.device.type == "cuda":
            workers, threads = 1, 0
        if (workers, threads) not in self.translators:
            self.translators.clear()
            self.translators[workers, threads] = ctranslate2.Translator(
                self.folder.name,
                device=self.device.type,
                compute_type=self.compute_type,
                inter_threads=workers,
                intra_threads=threads,
            )
        return self.translators[workers, threads]

    def translate(self, batches: Batches, size: int, beam: int, penalty: float) -> list[Ids]:
        sentences = flat(batches)
        found = self._translator(size).translate_batch(
            [[self.source[i] for i in ids] for ids in sentences],
            beam_size=beam,
            length_penalty=penalty,
            max_batch_size=size,
            batch_type="examples",
            max_decoding_length=max(map(len, sentences)) + self.max_extra,
        )
        return [[self.ids[piece] for piece in result.hypotheses[0]] for result in found]


# --- Regard ---


class Regard:
    """One engine call for all sentences, as in `regard translate`."""

    def __init__(self, bundle: Bundle, device: torch.device, engine: str) -> None:
        self.bundle, self.device, self.name = bundle, device, engine
        self.engine: Engine | None = None
        self.size = 0

    def translate(self, batches: Batches, size: int, beam: int, penalty: float) -> list[Ids]:
        if self.engine is None or size != self.size:
            self.engine = None
            release(self.device)
            self.engine, self.size = self._make(size), size
        options = SearchOptions(beam=beam, alpha=penalty, max_extra=self.bundle.decode.max_extra)
        return [list(hypotheses[0].ids) for hypotheses in self.engine.translate(flat(batches), options)]

    def _make(self, size: int) -> Engine:
        from regard.generate.engines.select import make_engine

        return make_engine(self.bundle, self.name, str(self.device), size)


def regard_int8(bundle: Bundle, device: torch.device) -> Session:
    """The same model as an int8 bundle, with which CTranslate2 computes in int8."""
    from regard.export import export

    if bundle.stored == "int8":
        return Regard(bundle, device, "ctranslate2")
    folder = tempfile.TemporaryDirectory(prefix="int8-")
    export(bundle, "bundle", Path(folder.name) / "bundle", "int8")
    session = Regard(load_bundle(Path(folder.name) / "bundle"), device, "ctranslate2")
    session.folder = folder  # type: ignore[attr-defined] # it goes when the session goes
    return session


def release(device: torch.device) -> None:
    """Free its memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


CONTENDERS = {
    "hf": Contender("Hugging Face generate", HuggingFace, "transformers"),
    "hf-static": Contender(
        "Hugging Face generate, static cache",
        lambda bundle, device: HuggingFace(bundle, device, static=True),
        "transformers",
        beams=(1,),
        optional=True,
    ),
    "ct2": Contender(
        "CTranslate2 fp32", lambda bundle, device: CTranslate2(bundle, device, "float32"), "ctranslate2", ("cpu",)
    ),
    "ct2-int8": Contender(
        "CTranslate2 int8", lambda bundle, device: CTranslate2(bundle, device, "int8"), "ctranslate2", ("cpu",)
    ),
    "ct2-fp16": Contender(
        "CTranslate2 fp16", lambda bundle, device: CTranslate2(bundle, device, "float16"), "ctranslate2", ("cuda",)
    ),
    "regard": Contender("Regard torch", lambda bundle, device: Regard(bundle, device, "torch")),
    "regard-ct2": Contender(
        "Regard ctranslate2", lambda bundle, device: Regard(bundle, device, "ctranslate2"), "ctranslate2", ("cpu",)
    ),
    "regard-ct2-int8": Contender("Regard ctranslate2, int8 bundle", regard_int8, "ctranslate2", ("cpu",)),
}
