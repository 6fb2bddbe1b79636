"""Exports bundles for CTranslate2: a folder that `ctranslate2.Translator` loads, with the tokenizer and a README."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from regard.bundle import Bundle
from regard.export.verify import Samples
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine, import_ctranslate2
from regard.generate.engines.ctranslate2_model import WeightFormat, convert, int8_levels, positions, vocabularies
from regard.generate.options import forbidden_ids


def write(bundle: Bundle, folder: Path, weights: str, samples: Samples) -> list[list[float]]:
    """Write the bundle into `folder`, load it with CTranslate2, and score the samples."""
    import_ctranslate2()  # before anything is written
    stored = cast(WeightFormat, weights)
    convert(bundle, folder, stored, int8_levels())
    bundle.tokenizer.save(folder / "tokenizer")
    (folder / "README.md").write_text(make_readme(bundle, stored), encoding="utf-8")
    engine = CTranslate2Engine(folder, bundle, stored)
    return engine.score(samples.src, samples.tgt)


def make_readme(bundle: Bundle, weights: WeightFormat) -> str:
    """How to use the folder, and where CTranslate2 by itself differs from Regard."""
    tokenizer, decode = bundle.tokenizer, bundle.decode
    _, target = vocabularies(tokenizer, bundle.config.vocab_size)
    banned = [target[i] for i in forbidden_ids(tokenizer)]
    models = ("joint.model", "joint.model") if tokenizer.kind == "joint" else ("source.model", "target.model")
    rows = positions(bundle)
    limit = f"- A sentence may have at most {rows - 1:,} pieces; a longer one is an error.\n" if rows < 1 << 30 else ""
    return f"""# {bundle.source} → {bundle.target} for CTranslate2

Written by `regard export --to ctranslate2 --weights {weights}`. The folder holds all that is needed:

```python
import ctranslate2
import sentencepiece

translator = ctranslate2.Translator("FOLDER")
source = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer/{models[0]}")
target = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer/{models[1]}")
sentences = ["one sentence"]
results = translator.translate_batch(
    [source.encode(sentence, out_type=str) for sentence in sentences],
    beam_size={decode.beam},
    length_penalty={decode.alpha},
    max_decoding_length={bundle.max_length + decode.max_extra},
)
print(*[target.decode(result.hypotheses[0]) for result in results], sep="\\n")
```

- CTranslate2 appends the end token to each source (`add_source_eos`).
- Its length penalty is n^p, and Regard's is ((5 + n) / 6)^alpha with the end token counted: the best of a beam can differ.
{limit}- {len(banned)} pieces stand for no text. If one appears in a translation, ban them: `suppress_sequences` takes a list
  such as `{[[piece] for piece in banned[:2]]}`.
- `regard translate --engine ctranslate2` handles all of this, and cuts lines that are too long.
"""
