"""Tokens per second of CPU time, on one core, that each way of serving a language model on a CPU gives 1, 4 and 16 clients who come
one after the other: python -m benchmarks.writing_clients BUNDLE"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from regard.bundle import Bundle, load_bundle
from regard.generate.engines.ctranslate2_text_engine import CTranslate2TextEngine
from regard.generate.engines.decoder_jobs import DecoderJob
from regard.generate.engines.joint_decoder import JointDecoder
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions

CLIENTS = (1, 4, 16)
PROMPT = "The history of the town begins with a river, and with the people who lived there."
TOKENS = 32
TURNS = 3  # contenders take turns; the best counts, since others may use the machine


def joint(bundle: Bundle, int8: bool) -> Callable[[int], float]:
    """The joint decoder: everybody joins the same batch."""
    decoder = JointDecoder(TorchEngine.from_bundle(bundle, "cpu", int8=int8))

    def measure(clients: int) -> float:
        jobs = [
            DecoderJob(prompt_of(bundle), SearchOptions(beam=1, max_extra=TOKENS + CLIENTS[-1])) for _ in range(clients)
        ]
        for job in jobs:
            decoder.prepare(job)
            decoder.enter([job])
            decoder.step()
        before, start = sum(len(job.rows[0].tokens) for job in jobs), time.process_time()
        for _ in range(TOKENS // 4):
            decoder.step()
        found = (sum(len(job.rows[0].tokens) for job in jobs) - before) / (time.process_time() - start)
        decoder.remove(jobs)
        return found

    return measure


def ctranslate2(bundle: Bundle, together: bool) -> Callable[[int], float]:
    """CTranslate2, in one call for all who happen to come at the same time, or in a call for each."""
    engine = CTranslate2TextEngine(bundle)
    options = SearchOptions(beam=1, max_extra=TOKENS)

    def measure(clients: int) -> float:
        prompts, start = [prompt_of(bundle)] * clients, time.process_time()
        calls = [prompts] if together else [[one] for one in prompts[:2]]  # each takes as long as the others
        written = sum(len(found[0].ids) for call in calls for found in engine.generate(call, options))
        return written / (time.process_time() - start)

    return measure


def prompt_of(bundle: Bundle) -> list[int]:
    return [*bundle.tokenizer.prompt_opening, *bundle.tokenizer.encode(PROMPT, "target")]


def main() -> None:
    bundle = load_bundle(Path(sys.argv[1]))
    contenders = {
        "joint decoder, fp32": joint(bundle, False),
        "joint decoder, int8": joint(bundle, True),
        "CTranslate2, int8, a call for each": ctranslate2(bundle, False),
        "CTranslate2, int8, one call for all": ctranslate2(bundle, True),
    }
    best: dict[tuple[str, int], float] = {}
    for _ in range(TURNS):
        for name, measure in contenders.items():
            for clients in CLIENTS:
                best[name, clients] = max(best.get((name, clients), 0.0), measure(clients))
    for name in contenders:
        print(f"{name:38}", *(f"{best[name, clients]:7.0f}" for clients in CLIENTS))


if __name__ == "__main__":
    main()
