"""The baseline for `regard serve`: CTranslate2 behind a plain FastAPI handler, one sentence per call, as tutorials show it.

    python -m benchmarks.plain_server MODEL PORT [--same-search]      (MODEL: a bundle)

By default CTranslate2 ends the search of a sentence once as many hypotheses have finished as the beam is wide.
`--same-search` gives it the options of Regard's engine, with which it considers half as many more; the answer is the one
that it ranks first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from regard.bundle import find_bundle, load_bundle
from regard.generate.engines.ctranslate2_cache import converted
from regard.generate.engines.ctranslate2_common import import_ctranslate2
from regard.generate.engines.ctranslate2_engine import share_cores
from regard.generate.engines.ctranslate2_model import WeightFormat, vocabularies
from regard.parallel.processes import own_threads


class Fields(BaseModel):
    q: str
    source: str
    target: str


def make_app(model: str, same_search: bool = False) -> FastAPI:
    bundle = load_bundle(find_bundle(Path(model)))
    weights: WeightFormat = "int8" if bundle.stored == "int8" else "fp32"
    workers, threads = share_cores(own_threads())
    with converted(bundle, weights) as folder:
        translator = import_ctranslate2().Translator(str(folder), inter_threads=workers, intra_threads=threads)
    source, target = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
    numbers = {piece: number for number, piece in enumerate(target)}
    search: dict[str, float] = {"beam_size": 4, "length_penalty": 0.6}
    if same_search:
        search |= {"length_penalty": 0, "num_hypotheses": 6, "patience": 1.5}
    app = FastAPI()

    @app.post("/translate")
    def translate(fields: Fields) -> dict[str, str]:  # not async: FastAPI runs it in one of 40 threads
        pieces = [source[i] for i in bundle.tokenizer.encode(fields.q)]
        found = translator.translate_batch([pieces], **search)
        return {"translatedText": bundle.tokenizer.decode([numbers[piece] for piece in found[0].hypotheses[0]])}

    return app


if __name__ == "__main__":
    app = make_app(sys.argv[1], "--same-search" in sys.argv)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
