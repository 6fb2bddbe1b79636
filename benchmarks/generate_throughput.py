"""Speed of generation compared: Regard's engine and Hugging Face generate continue the same random prompts with the same random
weights, greedily, in one run.

    python -m benchmarks.generate_throughput
    python -m benchmarks.generate_throughput --only gpt2 --batch 32 --contenders regard
    python -m benchmarks.generate_throughput --size tiny --rounds 1     # a moment on a CPU

GPT-2 of 124M parameters, and a LLaMA of 350M whose 16 heads share 4 of keys and values; prompts of 32 tokens, 128 new ones
each, fp16 on a GPU. The end token's output weights are zero, so that it never comes and all texts have their full length. The
contenders take turns, and the median of their rounds counts; times run from lists of ids to lists of ids, the prompts
included. Batch 1 is one call for each of several prompts; with a larger batch all prompts are one call.

"% of bandwidth" is the time in which the device could read what a step needs (each weight once, and the keys and values of all
texts so far), of the time that a step took. The bandwidth is that of copying a large tensor on the same device. "same tokens" is
how many tokens, on average, a text begins with that are Hugging Face's: in fp16 near-ties of random weights flip soon.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, print_facts, print_table, synchronize, time_rounds, write_json
from benchmarks.train_throughput import free
from regard.config import ModelConfig
from regard.device import pick_device
from regard.families import FAMILIES
from regard.families.table import to_theirs
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions
from regard.models.transformer import Transformer
from regard.nn.kernels import on_triton

END = 0  # the end token
ARCHITECTURES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {},  # transformers' defaults are the smallest GPT-2
    "llama": {
        "vocab_size": 32_000, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 2816,
    },
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 211, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "llama": {
        "vocab_size": 211, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64,
    },
}  # fmt: skip
BATCHES = {"gpt2": (1, 32, 256), "llama": (1, 64)}
PEER = "hf"
NAMES = {"regard": "Regard", "hf": "Hugging Face generate", "hf-static": "Hugging Face generate, static cache"}
TABLE = (
    "model",
    "batch",
    "contender",
    "tokens/s",
    "ms a token",
    "% of bandwidth",
    "same tokens",
    "warm-up s",
    "Regard is faster by",
)

Ids = list[int]
Generate = Callable[[Sequence[Ids]], list[Ids]]  # prompts of one length to what follows them


@dataclass(frozen=True)
class Task:
    """What is asked of the contenders."""

    prompt: int  # tokens of a prompt
    new: int  # tokens that follow it
    batch: int
    calls: int  # in a round

    def prompts(self, vocab_size: int) -> list[list[Ids]]:
        """The prompts of each call."""
        draw = torch.Generator().manual_seed(1)
        shape = (self.calls, self.batch, self.prompt)
        calls: list[list[Ids]] = torch.randint(END + 1, vocab_size, shape, generator=draw).tolist()
        return calls


def make_model(name: str, is_tiny: bool) -> Transformer:
    """A model with random weights that never ends a text: the logit of its end token is 0, and another one is always above that."""
    config = FAMILIES[name].config((TINY if is_tiny else SETTINGS)[name], ARCHITECTURES[name])
    torch.manual_seed(1)
    model = Transformer(config).eval().requires_grad_(False)
    model.output_matrix.data[END] = 0.0
    return model


def open_regard(name: str, model: Transformer, task: Task, device: torch.device, dtype: torch.dtype) -> Generate:
    slots = on_triton(device)
    engine = TorchEngine(model.to(dtype), END, END, device=device, batch=task.batch, slots=slots)
    options = SearchOptions(beam=1, alpha=0.0, max_extra=task.new)

    def generate(prompts: Sequence[Ids]) -> list[Ids]:
        return [list(hypotheses[0].ids) for hypotheses in engine.generate(prompts, options)]

    return generate


def open_hugging_face(
    name: str, model: Transformer, task: Task, device: torch.device, dtype: torch.dtype, static: bool = False
) -> Generate:
    """With `static`, a cache of a fixed shape, for which transformers compiles its step on CUDA."""
    import transformers

    family = FAMILIES[name]
    settings: Any = transformers.AutoConfig.for_model(
        name, **family.write(model.config), bos_token_id=END, eos_token_id=END
    )
    auto: Any = transformers.AutoModelForCausalLM
    theirs = auto.from_config(settings, attn_implementation="sdpa")
    theirs.load_state_dict(to_theirs(family.entries(model.config), model.state_dict()), strict=False)
    theirs.tie_weights()
    theirs = theirs.to(device, dtype).eval()
    given: dict[str, Any] = {"cache_implementation": "static"} if static else {}

    @torch.inference_mode()
    def generate(prompts: Sequence[Ids]) -> list[Ids]:
        ids = torch.tensor(prompts, device=device)
        mask = torch.ones_like(ids)
        found = theirs.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=task.new, do_sample=False, pad_token_id=END, **given
        )
        texts: list[Ids] = found[:, task.prompt :].tolist()
        return texts

    return generate


OPENERS: dict[str, Callable[..., Generate]] = {
    "regard": open_regard,
    "hf": open_hugging_face,
    "hf-static": partial(open_hugging_face, static=True),
}


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes."""
    size = (4 if device.type == "cuda" else 1) << 28
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    seconds = time_rounds({"copy": lambda: target.copy_(source)}, 5, device)
    return 2 * size / seconds["copy"]


def step_bytes(config: ModelConfig, task: Task, itemsize: int) -> float:
    """What a step must read, on average: all matrices once, and for each text the keys and values of its tokens so far. Of an
    embedding that is not also the output matrix a step reads one row for each text, which is not counted."""
    stack = config.stacks["decoder"]
    with torch.device("meta"):
        model = Transformer(config)
    unread = ("embedding.weight", "positions.weight")
    weights = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if weight is model.output_matrix or not name.endswith(unread)
    )
    length = task.prompt + (task.new - 1) / 2  # tokens before the newest one, on average
    cached = 2 * stack.layers * stack.kv_heads * stack.d_head * length
    return itemsize * (weights + task.batch * cached)


class Cell:
    """The contenders at one model and batch, taking turns."""

    def __init__(self, arguments: argparse.Namespace, name: str, task: Task, device: torch.device) -> None:
        self.arguments, self.name, self.task, self.device = arguments, name, task, device
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32
        self.config = make_model(name, arguments.size == "tiny").config
        self.calls = task.prompts(self.config.vocab_size)

    def rows(self, rate: float) -> list[dict[str, Any]]:
        opened: dict[str, Generate] = {}
        rows = {}
        for short in self.arguments.contenders:
            rows[short] = {
                "model": self.name, "batch": self.task.batch, "short name": short, "contender": NAMES[short],
            }  # fmt: skip
            with _noting(rows[short]):
                begun = time.perf_counter()
                model = make_model(self.name, self.arguments.size == "tiny")
                opened[short] = OPENERS[short](self.name, model, self.task, self.device, self.dtype)
                for _ in range(2):  # a graph is captured the second time
                    self.once(opened[short])
                rows[short]["warm-up s"] = time.perf_counter() - begun
        found: dict[str, list[Ids]] = {}
        seconds: dict[str, list[float]] = {short: [] for short in opened}
        for _ in range(self.arguments.rounds):
            for short in [short for short in opened if "error" not in rows[short]]:
                with _noting(rows[short]):
                    found[short], taken = self.once(opened[short])
                    seconds[short].append(taken)
        for short, texts in found.items():
            if "error" not in rows[short]:
                rows[short] |= self.figures(texts, seconds[short], rate)
                if PEER in found:
                    rows[short]["same tokens"] = _same_tokens(texts, found[PEER])
        compare(list(rows.values()))
        return list(rows.values())

    def once(self, generate: Generate) -> tuple[list[Ids], float]:
        """The texts of all calls, and the seconds that they took."""
        synchronize(self.device)
        begun = time.perf_counter()
        found = [text for prompts in self.calls for text in generate(prompts)]
        synchronize(self.device)
        taken = time.perf_counter() - begun
        if wrong := [len(text) for text in found if len(text) != self.task.new]:
            raise RuntimeError(f"a text has {wrong[0]} tokens instead of {self.task.new}")
        return found, taken

    def figures(self, texts: Sequence[Ids], seconds: Sequence[float], rate: float) -> dict[str, Any]:
        typical = statistics.median(seconds)
        step = typical / (self.task.calls * self.task.new)
        needed = step_bytes(self.config, self.task, self.dtype.itemsize) / rate
        return {
            "tokens/s": round(len(texts) * self.task.new / typical),
            "ms a token": 1e3 * step,
            "% of bandwidth": 100 * needed / step,
            "rounds, s": list(seconds),
        }


class _noting:  # noqa: N801 - used like a function
    """Around a contender's work: its failure costs its own row only."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        traceback.print_exception(error)
        self.row["error"] = f"{type(error).__name__}: {error}"[:500]
        return True


def _same_tokens(left: Sequence[Ids], right: Sequence[Ids]) -> float:
    """The mean length of the common beginnings."""
    pairs = [list(zip(one, other, strict=True)) for one, other in zip(left, right, strict=True)]
    return statistics.mean(next((n for n, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs)


def compare(rows: Sequence[dict[str, Any]]) -> None:
    """Fill in how many times as fast Regard is as each of the others, in the same cell."""
    ours = {
        (row["model"], row["batch"]): row["tokens/s"]
        for row in rows
        if row["short name"] == "regard" and "tokens/s" in row
    }
    for row in rows:
        cell = (row["model"], row["batch"])
        if row["short name"] != "regard" and cell in ours and "tokens/s" in row:
            row["Regard is faster by"] = ours[cell] / row["tokens/s"]


def run(arguments: argparse.Namespace, device: torch.device) -> None:
    rate = bandwidth(device)
    facts = {
        **machine(device, ("transformers", "triton")),
        "cuda": torch.version.cuda or "none",
        "precision": "fp16" if device.type == "cuda" else "fp32",
        "size": arguments.size,
        "prompt tokens": arguments.prompt,
        "new tokens": arguments.new,
        "rounds": arguments.rounds,
        "bandwidth GB/s": rate / 1e9,
    }
    print_facts(facts)
    rows: list[dict[str, Any]] = []
    path: Path | None = None
    for name in arguments.only:
        for batch in arguments.batch or BATCHES[name]:
            task = Task(arguments.prompt, arguments.new, batch, arguments.calls if batch == 1 else 1)
            cell = Cell(arguments, name, task, device).rows(rate)
            rows += cell
            for row in cell:
                outcome = row.get("error") or f"{row['tokens/s']:,} tokens/s, {row['% of bandwidth']:.0f}% of bandwidth"
                print(f"{name}, batch {batch}, {row['contender']}: {outcome}", flush=True)
            free(device)
            # Written each time, so that an interrupted run keeps its results.
            path = write_json("generate_throughput", rows, facts, arguments.out)
    print()
    columns = [column for column in TABLE if any(column in row for row in rows)]
    print_table([{column: row.get(column, "failed" if "error" in row else None) for column in columns} for row in rows])
    print(f"\nwritten to {path}")


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, torch.device]:
    """The command line, with defaults that suit the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BATCHES), help=f"some of {','.join(BATCHES)}")
    parser.add_argument("--batch", help="such as 1,32 (default: 1,32,256 for gpt2 and 1,64 for llama; tiny: 1,4)")
    parser.add_argument("--contenders", default="regard,hf", help=f"some of {','.join(NAMES)}")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens that follow it")
    parser.add_argument("--calls", type=int, default=3, help="prompts of a round at batch 1, one call each")
    parser.add_argument("--rounds", type=int, default=5, help="after two that warm up")
    parser.add_argument("--size", choices=("base", "tiny"), help="default: base on CUDA, else tiny")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/generate_throughput.json)")
    parsed = parser.parse_args(arguments)
    device = pick_device(parsed.device)
    parsed.size = parsed.size or ("base" if device.type == "cuda" else "tiny")
    parsed.only, parsed.contenders = parsed.only.split(","), parsed.contenders.split(",")
    for option, known in (("only", list(BATCHES)), ("contenders", list(NAMES))):
        if unknown := [name for name in getattr(parsed, option) if name not in known]:
            parser.error(f"--{option} knows {', '.join(known)}, but not {', '.join(unknown)}")
    if parsed.batch is None:
        parsed.batch = [1, 4] if parsed.size == "tiny" else []
    elif all(part.isdigit() and int(part) for part in parsed.batch.split(",")):
        parsed.batch = list(map(int, parsed.batch.split(",")))
    else:
        parser.error(f"--batch must be whole numbers from 1 up, with commas, but is {parsed.batch}")
    for option in ("prompt", "new", "calls", "rounds"):
        if getattr(parsed, option) < 1:
            parser.error(f"--{option} must be at least 1, but is {getattr(parsed, option)}")
    return parsed, device


def main(arguments: Sequence[str] | None = None) -> None:
    run(*parse(arguments))


if __name__ == "__main__":
    main()
