"""How fast one thread makes batches from the token store of a run, with and without BPE-dropout.

python -m benchmarks.bpe_dropout runs/en-de
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, report
from regard.data.bpe_dropout import BpeDropout
from regard.data.feed import Feed
from regard.data.pair_packing import PairPacking, make_sampler
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with its token store")
    parser.add_argument("--probability", type=float, default=0.1)
    parser.add_argument("--batch-tokens", type=int, default=5000)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    store, tokenizer = Store.open(arguments.run / "store"), Tokenizer.load(arguments.run / "tokenizer")
    begun = time.perf_counter()
    dropout = BpeDropout(store, tokenizer, arguments.probability, 1, arguments.max_length)
    seconds = time.perf_counter() - begun
    rows = [
        measure(store, tokenizer, None, arguments, 0.0),
        measure(store, tokenizer, dropout, arguments, seconds),
    ]
    facts = {**machine(torch.device("cpu"), ("numpy",)), "run": str(arguments.run), "pairs": len(store)}
    report("bpe_dropout", rows, facts, arguments.out)


def measure(
    store: Store, tokenizer: Tokenizer, dropout: BpeDropout | None, arguments: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    lengths = (
        (store["source"].lengths, store["target"].lengths)
        if dropout is None
        else (dropout.src_lengths, dropout.tgt_lengths)
    )
    sampler = make_sampler(lengths[0], lengths[1], arguments.batch_tokens, 1, store.corpora)
    bos_id, eos_id, longest = tokenizer.bos_id, tokenizer.eos_id, arguments.max_length
    feed = Feed(store, sampler, PairPacking(store, bos_id, eos_id, None, dropout, longest), 1)
    updates = feed._updates()  # in this thread, without prefetching
    next(updates)
    begun = time.perf_counter()
    tokens = sum(update.count for update in islice(updates, arguments.updates))
    return {
        "bpe_dropout": arguments.probability if dropout is not None else 0.0,
        "prepared in s": seconds,
        "target tokens a pair": float(lengths[1].mean()) + 1,
        "target tokens/s": round(tokens / (time.perf_counter() - begun)),
    }


if __name__ == "__main__":
    main()
