"""Claim: the Transformer trains faster and translates better (section 6.1). An LSTM encoder-decoder with attention, a convolutional
one and the Transformer, equally large, on the same pairs in updates of equally many tokens, for the same minutes.

All have AdamW, a linear decay tied to the clock after a tenth of the time, and dropout, label smoothing and clipping as the recipe
says; two learning rates each, of which the validation loss picks one. The clock stands still while code is compiled and models are
validated. The Transformer trains as `regard train` does it; a second one without the fast path shows what is due to that. The LSTM
leaves padding to cuDNN; an update of the convolutions is cut into groups of similar length. Both take bf16 or fp32, whichever is
faster on the first updates. Test sentences are translated by greedy search.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from benchmarks.common import print_table, synchronize
from benchmarks.loop_overhead import prepare_in
from benchmarks.paper_claims.bench import Bench, Lead, Row, rounded
from benchmarks.paper_claims.convolutional import ConvolutionalTranslator
from benchmarks.paper_claims.greedy import greedy, lengths_in_buckets
from benchmarks.paper_claims.grid import fit_width, num_parameters
from benchmarks.paper_claims.recurrent import RecurrentTranslator
from benchmarks.train_throughput import free
from regard.config import ModelConfig
from regard.data.corpus import Texts
from regard.data.pairs import PairBatch, gather, make_batch
from regard.data.prefetch import Prefetcher
from regard.evaluate import score
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions, forbidden_ids
from regard.models.transformer import Transformer
from regard.parallel.ranks import Ranks
from regard.recipe import Recipe, TrainRecipe
from regard.tasks import translate
from regard.training.check import pick_fast_path
from regard.training.display import Display
from regard.training.folder import RunFolder
from regard.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from regard.training.prepare import PreparedData
from regard.training.setup import make_feed, make_update
from regard.training.update import PlainUpdate, SlotUpdate, UpdateOptions

TRANSFORMER, PLAIN, LSTM, CONVOLUTION = "Transformer", "Transformer, plain path", "LSTM", "convolution"
RATES = {TRANSFORMER: (1e-3, 2e-3), LSTM: (1e-3, 3e-3), CONVOLUTION: (5e-4, 1.5e-3)}
GROUPS = {LSTM: 1, CONVOLUTION: 4}  # by length, of an update
WARM_UPDATES = 4  # that compile, capture or choose algorithms; at learning rate 0
VALIDATIONS = 8
MAX_EXTRA = 30
BUCKETS = 6

Update = PlainUpdate | SlotUpdate
Batches = Iterator[tuple[Sequence[Any], int]]  # micro-batches of an update, and its labels


@dataclass
class Run:
    """One contender at one learning rate."""

    name: str
    rate: float
    model: nn.Module
    dtype: torch.dtype | None
    row: Row = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)  # seconds of training, validation loss

    @property
    def loss(self) -> float:
        return self.curve[-1][1]


@dataclass(frozen=True)
class Race:
    """What all contenders share."""

    bench: Bench
    recipe: Recipe
    data: PreparedData
    seconds: float
    validator: translate.TranslationValidator
    sentences: Sequence[Texts]  # to translate

    @property
    def config(self) -> ModelConfig:
        return self.recipe.model.config(self.data.tokenizer.vocab_size)


def make_rival(name: str, config: ModelConfig, parameters: int) -> nn.Module:
    """A rival of about so many parameters. Its layers are cheaper than the Transformer's, so convolutions get twice as many."""
    layers = config.decoder_layers * (2 if name == CONVOLUTION else 1)

    def build(width: int) -> nn.Module:
        kind = ConvolutionalTranslator if name == CONVOLUTION else RecurrentTranslator
        return kind(config.vocab_size, width, layers, config.dropout)

    return build(fit_width(build, parameters))


def rival_batches(race: Race, groups: int) -> Batches:
    """The updates of the recipe's sampler, lengths mixed, each cut into groups of similar length."""
    store, tokenizer = race.data.store, race.data.tokenizer
    sampler, _ = translate.make_batches(race.recipe, store, tokenizer, with_slots=False)
    lengths, is_cuda = store["target"].lengths, race.bench.device.type == "cuda"
    for indices in sampler:
        order = indices[np.argsort(lengths[indices], kind="stable")]
        parts = [part for part in np.array_split(order, groups) if len(part)]
        batches = [make_batch(*gather(store, part), tokenizer.bos_id, tokenizer.eos_id) for part in parts]
        yield [_pinned(batch) if is_cuda else batch for batch in batches], sum(batch.num_tokens for batch in batches)


def _pinned(batch: PairBatch) -> PairBatch:
    return PairBatch(**{name: value.pin_memory() for name, value in vars(batch).items()})


def plain_update(race: Race, model: nn.Module, train: TrainRecipe, dtype: torch.dtype | None) -> PlainUpdate:
    """Regard's update; it asks a model for no more than `hidden` and `output_weight`."""
    options = UpdateOptions(train.label_smoothing, train.clip, dtype)
    return PlainUpdate(translate.loss, cast(Transformer, model), make_optimizer(model, train), options)


def pick_dtype(race: Race, name: str, model: nn.Module) -> torch.dtype | None:
    """bf16 if the rival trains faster in it; a library may lack it for one of them."""
    device, seconds = race.bench.device, dict[torch.dtype | None, float]()
    if race.bench.dtype is None:
        return None
    updates = rival_batches(race, GROUPS[name])
    batches = [next(updates) for _ in range(3)]
    for dtype in (None, race.bench.dtype):
        update = plain_update(race, copy.deepcopy(model), race.recipe.train, dtype)
        try:
            for _ in range(3):  # the first two rounds warm up
                synchronize(device)
                begun = time.perf_counter()
                for batch in batches:
                    update(*batch)
                synchronize(device)
                seconds[dtype] = time.perf_counter() - begun
        except RuntimeError as error:
            print(f"{name}: {dtype} does not work here ({str(error).splitlines()[0]})", flush=True)
            seconds.pop(dtype, None)
    return min(seconds, key=lambda dtype: seconds[dtype])


def timed_run(race: Race, run: Run, update: Update, batches: Batches, train: TrainRecipe) -> None:
    """Train for the race's seconds; the clock stands still during warm-up and validation."""
    device, lead, optimizer = race.bench.device, Lead(race.bench.device), update.optimizer
    begun = time.perf_counter()
    set_learning_rate(optimizer, 0.0)
    for _ in range(WARM_UPDATES if not race.bench.smoke else 1):
        update(*next(batches))
    synchronize(device)
    run.row["before the clock, s"] = time.perf_counter() - begun
    spent, step, tokens, width = 0.0, 0, 0, race.config.d_model
    begun = time.perf_counter()
    while not step or spent < race.seconds:
        step += 1
        set_learning_rate(optimizer, learning_rate(train, width, step, 4000, spent / race.seconds, timed=True))
        parts, count = next(batches)
        update(parts, count)
        lead.limit()
        tokens += count
        spent = time.perf_counter() - begun
        if spent >= race.seconds or spent >= race.seconds * (len(run.curve) + 1) / VALIDATIONS:
            synchronize(device)
            spent = time.perf_counter() - begun
            run.curve.append((spent, race.validator.loss(cast(Transformer, run.model), device, run.dtype)))
            run.model.train()
            begun = time.perf_counter() - spent
    run.row |= {"number format": "bf16" if run.dtype else "fp32"}
    run.row |= {"updates": step, "target tokens/s": round(tokens / spent), "seconds": spent}


def run_transformer(race: Race, name: str, rate: float) -> Run:
    """What `regard train` does on this device, or its plain path."""
    device = race.bench.device
    train = replace(race.recipe.train, lr=rate, fast="off" if name == PLAIN else race.recipe.train.fast)
    recipe = replace(race.recipe, train=train)
    torch.manual_seed(race.bench.seed)
    model = Transformer(race.config).to(device).train()
    path = pick_fast_path(train, race.config, device, 1)
    ranks = Ranks(device=device)
    feed = make_feed(recipe, race.data.store, race.data.tokenizer, path, ranks)
    optimizer = make_optimizer(model, train)
    update = make_update(recipe, translate.loss, model, optimizer, feed, path, race.bench.dtype, Display(), ranks)
    run = Run(name, rate, model, race.bench.dtype)
    try:
        timed_run(race, run, update, ((each.parts, each.count) for each in feed), train)
    finally:
        feed.close()
    return run


def run_rival(race: Race, name: str, rate: float) -> Run:
    torch.manual_seed(race.bench.seed)
    with torch.device("meta"):
        parameters = num_parameters(Transformer(race.config))
    model = make_rival(name, race.config, parameters).to(race.bench.device).train()
    dtype = pick_dtype(race, name, model)
    train = replace(race.recipe.train, lr=rate)
    run = Run(name, rate, model, dtype)
    with Prefetcher(rival_batches(race, GROUPS[name]), 3) as batches:
        timed_run(race, run, plain_update(race, model, train, dtype), batches, train)
    return run


def test_bleu(race: Race, run: Run) -> Row:
    """BLEU of greedy translations of the test set, and of its sentences from short to long."""
    tokenizer, device = race.data.tokenizer, race.bench.device
    sources = tokenizer.encode_batch([source for source, _ in race.sentences])
    forbidden = forbidden_ids(tokenizer)
    if isinstance(run.model, Transformer):
        engine = TorchEngine(run.model, tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden, device=device)
        found = engine.translate(sources, SearchOptions(beam=1, max_extra=MAX_EXTRA))
        ids: list[Sequence[int]] = [hypotheses[0].ids for hypotheses in found]
    else:
        rival = cast(RecurrentTranslator | ConvolutionalTranslator, run.model)
        ids = list(greedy(rival, sources, tokenizer.bos_id, tokenizer.eos_id, forbidden, device, MAX_EXTRA))
    translations = [tokenizer.decode(each) for each in ids]
    references = [reference for _, reference in race.sentences]

    def bleu(numbers: Sequence[int]) -> Any:
        chosen = [translations[n] for n in numbers], [references[n] for n in numbers]
        return score(*chosen, target_language=race.recipe.data.target, bootstrap=0, metrics=("bleu",))["BLEU"]

    everything = bleu(range(len(translations)))
    buckets = lengths_in_buckets([len(source.split()) for source, _ in race.sentences], BUCKETS)
    return {
        "test BLEU": everything.score,
        "signature": everything.signature,
        "by length": [
            {"words": words, "sentences": len(numbers), "BLEU": bleu(numbers).score} for words, numbers in buckets
        ],
    }


def race_of(bench: Bench, recipe: Recipe, folder: Path, minutes: float) -> Race:
    data = prepare_in(RunFolder(folder), recipe, Display())
    valid = data.valid or []
    validator = translate.make_validator(recipe, valid[:40] if bench.smoke else valid, data.tokenizer, loss_only=True)
    return Race(bench, recipe, data, minutes * 60.0, validator, data.test[:60] if bench.smoke else data.test)


def measure(
    bench: Bench, recipe: Recipe, minutes: float, earlier: Sequence[Row], keep: Callable[[list[Row]], None]
) -> list[Row]:
    """A row for each contender and learning rate; `keep` gets the rows after each of them. Contenders that an earlier start has
    finished, their translations included, are not trained again."""
    finished = {row["contender"]: row["rate"] for row in earlier if row.get("chosen")}
    rows: list[Row] = [row for row in earlier if row["contender"] in finished]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        race = race_of(bench, recipe, Path(folder), minutes)
        names = [TRANSFORMER, *([PLAIN] if bench.device.type == "cuda" else []), LSTM, CONVOLUTION]
        best_rate = 0.0
        for name in names:
            if name in finished:
                best_rate = finished[name] if name == TRANSFORMER else best_rate
                print(f"{name}: measured before", flush=True)
                continue
            best: Run | None = None
            for rate in (best_rate,) if name == PLAIN else RATES[name]:
                run = (run_rival if name in GROUPS else run_transformer)(race, name, rate)
                rows.append(_row(run, race))
                print(
                    f"{name}, rate {rate:g}: validation loss {run.loss:.3f}, {run.row['updates']:,} updates", flush=True
                )
                if best is None or run.loss < best.loss:
                    best = run
                del run
                free(bench.device)
                keep(rows)
            assert best is not None
            if name == TRANSFORMER:
                best_rate = best.rate
            chosen = next(row for row in rows if row["contender"] == name and row["rate"] == best.rate)
            chosen |= {"chosen": True, **test_bleu(race, best)}
            keep(rows)
            del best
            free(bench.device)
    return sorted(rows, key=lambda row: names.index(row["contender"]))


def _row(run: Run, race: Race) -> Row:
    return {
        "contender": run.name,
        "rate": run.rate,
        "parameters": num_parameters(run.model),
        **rounded(run.row),
        "validation loss": round(run.loss, 4),
        "curve": [(round(seconds, 2), round(loss, 4)) for seconds, loss in run.curve],
        "pairs": len(race.data.store),
        "vocabulary": race.data.tokenizer.vocab_size,
    }


def show(rows: Sequence[Row]) -> None:
    """All runs, then BLEU from short to long sentences."""
    columns = ("contender", "rate", "parameters", "number format", "updates", "target tokens/s", "validation loss")
    print_table(
        [
            {**{c: f"{row[c]:g}" if c == "rate" else row[c] for c in columns}, "test BLEU": row.get("test BLEU")}
            for row in rows
        ]
    )
    chosen = [row for row in rows if row.get("chosen")]
    print("\ntest BLEU by words of the source sentence:")
    print_table(
        [
            {"contender": row["contender"], **{each["words"]: each["BLEU"] for each in row["by length"]}}
            for row in chosen
        ]
    )
