"""Claim: the shorter the path between two places, the easier it is to learn what connects them (section 4). Recall of a token over
10 to 2,000 places, by a Transformer, an LSTM and convolutions of equal size, trained for the same seconds at two learning rates.

    facts (k1, v) (k2, v) ...   noise of so many tokens   questions k2 k1 ...   ->   the v of each

Facts and questions come in random order; a fact is one token, its key and value together. A batch has one distance, drawn evenly
on a logarithmic scale, and as many texts as fit its tokens. All models see the same batches, as many as they manage.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import print_table, synchronize
from benchmarks.paper_claims.bench import Bench, Lead, Row, Rows, rounded
from benchmarks.paper_claims.convolutional import ConvolutionalReader
from benchmarks.paper_claims.grid import fit_width, num_parameters
from benchmarks.paper_claims.recurrent import RecurrentReader
from regard.config import ModelConfig
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer

DISTANCES = (10, 20, 50, 100, 200, 500, 1000, 2000)
RATES = (1e-3, 4e-3)  # of each model; the better one, on texts of its own, is reported
WARM_SHARE = 0.1  # of the time, over which the learning rate rises
TEST_TEXTS = 256
CHOSEN, TESTED = 1000, 2000  # added to the seed: texts that choose a learning rate, and those that are reported


@dataclass(frozen=True)
class Recall:
    """The task: `keys` facts with one of `values` each, and noise of another alphabet between facts and questions."""

    keys: int = 8
    values: int = 32
    noise: int = 64
    tokens: int = 16_384  # of a batch

    @property
    def vocab_size(self) -> int:
        return self.keys * self.values + self.noise + self.keys

    def draw(self, texts: int, distance: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids (texts, keys + distance + keys) and the answers to the last `keys` of them, (texts, keys)."""

        def numbers(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator, device=generator.device)

        values = numbers(self.values, texts, self.keys)
        told, asked = (
            torch.rand(texts, self.keys, generator=generator, device=generator.device).argsort(-1) for _ in range(2)
        )
        facts = told * self.values + values.gather(1, told)
        noise = self.keys * self.values + numbers(self.noise, texts, distance)
        questions = self.keys * self.values + self.noise + asked
        return torch.cat((facts, noise, questions), dim=1), values.gather(1, asked)

    def texts(self, distance: int) -> int:
        """How many texts make a batch."""
        return max(1, self.tokens // (2 * self.keys + distance))


class TransformerReader(nn.Module):
    """Regard's decoder: (texts, length) ids -> states (texts, length, d_model)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model = Transformer(config)

    def forward(self, ids: Tensor) -> Tensor:
        layout = SequenceLayout.from_lengths([ids.shape[1]] * ids.shape[0], ids.device)
        # (texts, length) -> (tokens,) -> (tokens, d_model) -> (texts, length, d_model)
        states: Tensor = self.model.decode(ids.flatten(), layout).unflatten(0, ids.shape)
        return states


class Answers(nn.Module):
    """A reader with a linear layer on the places of the questions."""

    def __init__(self, reader: nn.Module, width: int, task: Recall) -> None:
        super().__init__()
        self.reader, self.head, self.keys = reader, nn.Linear(width, task.values), task.keys

    def forward(self, ids: Tensor) -> Tensor:
        answers: Tensor = self.head(self.reader(ids)[:, -self.keys :])
        return answers


def make_task(bench: Bench) -> Recall:
    return Recall(4, 8, 8, 256) if bench.smoke else Recall()


def make_config(task: Recall, bench: Bench) -> ModelConfig:
    width, layers = (32, 2) if bench.smoke else (256, 4)
    return ModelConfig(
        task.vocab_size, d_model=width, d_ff=4 * width, num_heads=4, encoder_layers=0, decoder_layers=layers, dropout=0.0,
        norm_position="pre",
    )  # fmt: skip


def make_readers(task: Recall, bench: Bench) -> dict[str, Callable[[], Answers]]:
    """Builders of readers of equal size. The dilated convolutions have as many layers as it takes to see the longest distance."""
    config = make_config(task, bench)
    longest = max(distances(bench)) + 2 * task.keys
    deep = math.ceil(math.log2(longest)) - 1
    with torch.device("meta"):
        parameters = num_parameters(Transformer(config))
    shapes: dict[str, Callable[[int], nn.Module]] = {
        "LSTM": lambda width: RecurrentReader(task.vocab_size, width, 3),
        "convolution": lambda width: ConvolutionalReader(
            task.vocab_size, width, 2 * config.decoder_layers, dilated=False
        ),
        "convolution, dilated": lambda width: ConvolutionalReader(task.vocab_size, width, deep, dilated=True),
    }
    readers: dict[str, Callable[[], Answers]] = {
        "Transformer": lambda: Answers(TransformerReader(config), config.d_model, task)
    }
    for name, shape in shapes.items():
        width = fit_width(shape, parameters)
        readers[name] = _with_answers(shape, width, task)
    return readers


def _with_answers(shape: Callable[[int], nn.Module], width: int, task: Recall) -> Callable[[], Answers]:
    return lambda: Answers(shape(width), width, task)


def distances(bench: Bench) -> tuple[int, ...]:
    return (4, 16) if bench.smoke else DISTANCES


def batch_loss(model: nn.Module, task: Recall, bench: Bench, distance: int, generator: torch.Generator) -> Tensor:
    ids, answers = task.draw(task.texts(distance), distance, generator)
    with torch.autocast(bench.device.type, bench.dtype, enabled=bench.dtype is not None):
        logits = model(ids)
    return F.cross_entropy(logits.float().flatten(0, 1), answers.flatten())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def make_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def draws(bench: Bench, offset: int = 0) -> torch.Generator:
    return torch.Generator(bench.device).manual_seed(bench.seed + offset)


def train_updates(model: Answers, task: Recall, bench: Bench, rate: float, updates: int, distance: int) -> list[float]:
    """The losses of so many updates at one distance, with a linear decay."""
    optimizer, generator = make_adam(model), draws(bench)
    losses = []
    for number in range(updates):
        loss = batch_loss(model, task, bench, distance, generator)
        step(model, optimizer, loss, rate * min((number + 1) / (WARM_SHARE * updates), 1 - number / updates))
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).tolist()]


@torch.no_grad()
def accuracy(model: Answers, task: Recall, bench: Bench, distance: int, offset: int = TESTED) -> float:
    """The share of right answers, on texts that were not trained on."""
    generator, right, seen = draws(bench, offset), 0, 0
    while seen < (8 if bench.smoke else TEST_TEXTS):
        ids, answers = task.draw(min(task.texts(distance), TEST_TEXTS), distance, generator)
        with torch.autocast(bench.device.type, bench.dtype, enabled=bench.dtype is not None):
            logits = model(ids)
        right += int((logits.argmax(-1) == answers).sum())
        seen += len(ids)
    return right / (seen * task.keys)


def timed_training(model: nn.Module, task: Recall, bench: Bench, rate: float, seconds: float) -> Row:
    """Train for so many seconds after a first pass over all distances that does not count."""
    optimizer, lead = make_adam(model), Lead(bench.device)
    for distance in distances(bench):
        step(model, optimizer, batch_loss(model, task, bench, distance, draws(bench)), 0.0)
    synchronize(bench.device)
    generator = draws(bench)
    choices = torch.Generator().manual_seed(bench.seed)
    low, high = (math.log(each) for each in (distances(bench)[0], distances(bench)[-1]))
    begun, spent, updates, last = time.perf_counter(), 0.0, 0, 0.0
    while not updates or spent < seconds:
        distance = round(math.exp(low + (high - low) * float(torch.rand((), generator=choices))))
        loss = batch_loss(model, task, bench, distance, generator)
        part = spent / seconds
        step(model, optimizer, loss, rate * max(0.0, min((part + 1e-3) / WARM_SHARE, 1 - part)))
        lead.limit()
        updates += 1
        spent = time.perf_counter() - begun
    synchronize(bench.device)
    last = float(loss.detach())
    return {"updates": updates, "seconds": time.perf_counter() - begun, "last loss": last}


def usable(model: Answers, task: Recall, bench: Bench) -> Bench:
    """The bench, in fp32 if the library of this model has no half precision here."""
    try:
        torch.autograd.backward(batch_loss(model, task, bench, distances(bench)[0], draws(bench)))
    except RuntimeError:
        return replace(bench, dtype=None)
    finally:
        model.zero_grad(set_to_none=True)
    return bench


def measure(bench: Bench, seconds: float, rows: Rows) -> list[Row]:
    """A row for each model and learning rate; the better one of each is marked."""
    task = make_task(bench)
    for name, build in make_readers(task, bench).items():
        tried = []
        for rate in RATES:
            key = {"model": name, "rate": rate}
            tried.append(rows.measured(key, _run, build, rate, task, bench, seconds))
            print(
                f"recall, {name}, rate {rate:g}: {tried[-1]['updates']:,} updates, {tried[-1]['accuracy, %']}",
                flush=True,
            )
        max(tried, key=lambda row: float(row["on other texts, %"]))["chosen"] = True
    return rows.rows


def _run(build: Callable[[], Answers], rate: float, task: Recall, given: Bench, seconds: float) -> Row:
    """Train one model at one learning rate, and measure it at all distances."""
    torch.manual_seed(given.seed)
    model = build().to(given.device).train()
    bench = usable(model, task, given)
    row: Row = {"number format": "bf16" if bench.dtype else "fp32", "parameters": num_parameters(model)}
    row |= rounded(timed_training(model, task, bench, rate, seconds))
    reader = model.reader
    row["sees, tokens"] = reader.reach if isinstance(reader, ConvolutionalReader) else None
    model.eval()
    found = {each: 100 * accuracy(model, task, bench, each) for each in distances(bench)}
    others = [100 * accuracy(model, task, bench, each, CHOSEN) for each in distances(bench)]
    row["on other texts, %"] = sum(others) / len(others)
    row["accuracy, %"] = {str(each): round(value, 2) for each, value in found.items()}
    row["chance, %"] = 100 / task.values
    return row


def show(rows: Sequence[Row]) -> None:
    print("\nrecall, % right over distance")
    print_table(
        [
            {
                "model": row["model"],
                "rate": f"{row['rate']:g}",
                "parameters": row["parameters"],
                "updates": row["updates"],
                **row["accuracy, %"],
                "taken": "yes" if row.get("chosen") else "",
            }
            for row in rows
        ]
    )
