"""Speed of generation on CPUs compared: Regard, Hugging Face generate and llama.cpp continue the same prompts with the same
weights, greedily.

    python -m benchmarks.generate_cpu --gguf SmolLM2-135M-Instruct.Q4_1.gguf --threads 2
    python -m benchmarks.generate_cpu --gguf FILE.gguf --cases 1x32+128 --contenders regard,llama.cpp --llama-python VENV/bin/python

A case is BATCHxPROMPT+NEW: so many prompts, each of so many tokens of a text, and so many new tokens after each; the end token is
ignored. The rate counts the new tokens, and with a single one (1x512+1, reading a prompt) the prompt's. The GGUF file, a LLaMA, is
imported as `regard import` does; for llama.cpp the same weights are written again as Q8_0, so that both compute with 8 bits. Each
contender runs in a process of its own with so many threads. They take turns, since the machine may be shared: a ratio is the
median over the rounds of two times that were measured one after the other, and there is one of CPU times, too, which busy
neighbours change less. Times run from lists of ids to lists of ids, prompts included. llama.cpp gets the prompts of a batch one
after the other, since llama-cpp-python has no batches. It needs the package llama-cpp-python, which is built from source, perhaps
in an environment of its own (--llama-python). The rate at which the threads read memory bounds all of them: a token needs every
weight once.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = {
    "regard": "Regard, ONNX Runtime, 8 bits",
    "regard-int8": "Regard, CTranslate2 int8",
    "regard-fp32": "Regard, CTranslate2 fp32",
    "hf": "Hugging Face generate, fp32",
    "llama.cpp": "llama.cpp, Q8_0",
}
CASES = "1x32+128,8x32+128,1x512+1"
TEXT = Path(__file__).parents[1] / "data" / "tatoeba" / "test.en.xz"

Ids = list[int]
Generate = Callable[[Sequence[Ids], int], list[Ids]]  # prompts, new tokens

_PACKAGES = {
    "regard": "onnxruntime", "regard-int8": "ctranslate2", "regard-fp32": "ctranslate2", "hf": "transformers",
    "llama.cpp": "llama-cpp-python",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is measured at a time."""

    batch: int
    prompt: int
    new: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """ "8x32+128" """
        if not (found := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)\+([1-9]\d*)", text)):
            raise ValueError(f"a case must be BATCHxPROMPT+NEW, such as 8x32+128, but is {text!r}")
        return cls(*map(int, found.groups()))

    def __str__(self) -> str:
        return f"{self.batch}x{self.prompt}+{self.new}"

    @property
    def tokens(self) -> int:
        """What its rate counts."""
        return self.batch * (self.new if self.new > 1 else self.prompt)


@dataclass(frozen=True)
class Times:
    """Of one round."""

    seconds: float
    cpu: float  # of all threads


# --- the contenders, each in its own process ---


def open_regard(weights: str, bundle_folder: Path) -> Generate:
    from regard.bundle import load_bundle
    from regard.data.huggingface import Controls
    from regard.data.tokenizer import Tokenizer
    from regard.generate.engines.ctranslate2_text_engine import CTranslate2TextEngine
    from regard.generate.engines.onnx_text_engine import OnnxTextEngine
    from regard.generate.options import SearchOptions, TextEngine

    bundle = load_bundle(bundle_folder)
    # The end token is an id that no text has, so that all texts are equally long.
    last = bundle.config.vocab_size - 1
    vars(bundle)["tokenizer"] = Tokenizer((), controls=Controls(last + 1, start=last, end=last, stops=(last,)))
    engine: TextEngine = CTranslate2TextEngine(bundle, weights) if weights else OnnxTextEngine(bundle)  # type: ignore[arg-type]

    def generate(prompts: Sequence[Ids], new: int) -> list[Ids]:
        found = engine.generate(prompts, SearchOptions(beam=1, alpha=0.0, max_extra=new))
        return [list(some[0].ids) for some in found]

    return generate


def open_hugging_face(gguf: Path, threads: int) -> Generate:
    import torch
    import transformers

    torch.set_num_threads(threads)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts: Sequence[Ids], new: int) -> list[Ids]:
        ids = torch.tensor(prompts)
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        texts: list[Ids] = found[:, ids.shape[1] :].tolist()
        return texts

    return generate


def open_llama(q8: Path, threads: int, longest: int) -> Generate:
    llama_cpp: Any = __import__("llama_cpp")
    model = llama_cpp.Llama(
        str(q8), n_ctx=longest + 8, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False
    )

    def one(prompt: Ids, new: int) -> Ids:
        model.reset()
        found: Ids = []
        for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0, reset=True):
            found.append(int(token))
            if len(found) == new:
                break
        return found

    return lambda prompts, new: [one(prompt, new) for prompt in prompts]


def work(given: dict[str, Any]) -> None:
    """One contender, in a process of its own: opens the model and says its version, then answers each line of standard input with a
    round's times."""
    short, threads = given["contender"], given["threads"]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to standard error
    if short.startswith("regard"):
        generate = open_regard(short.removeprefix("regard").removeprefix("-"), Path(given["bundle"]))
    elif short == "hf":
        generate = open_hugging_face(Path(given["gguf"]), threads)
    else:
        generate = open_llama(Path(given["q8"]), threads, given["longest"])
    print(json.dumps({"version": importlib.metadata.version(_PACKAGES[short])}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begun, used = time.perf_counter(), time.process_time()
        texts = generate(asked["prompts"], asked["new"])
        times = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - used}
        print(json.dumps({**times, "texts": texts}), file=out, flush=True)


# --- the run ---


def write_q8(source: Path, target: Path) -> None:
    """The same weights, every matrix in Q8_0."""
    import gguf

    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), "llama")
    for field in reader.fields.values():
        name = field.name
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    eight = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) > 1:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, eight), raw_dtype=eight)
        else:
            writer.add_tensor(tensor.name, values.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_prompts(bundle_folder: Path, text: Path, case: Case) -> list[Ids]:
    from regard.bundle import load_bundle
    from regard.data.corpus import read_lines

    tokenizer = load_bundle(bundle_folder).tokenizer
    needed = case.batch * case.prompt
    lines = [line for line, _ in zip(read_lines(text), range(needed), strict=False)]
    ids = tokenizer.encode("\n".join(lines), "target")
    if len(ids) < needed:
        raise SystemExit(f"{text}: must have {needed:,} tokens for case {case}, but has {len(ids):,}")
    return [ids[n * case.prompt : (n + 1) * case.prompt] for n in range(case.batch)]


class Contender:
    """A process that answers rounds."""

    def __init__(self, short: str, given: dict[str, Any], python: str) -> None:
        self.name, threads = NAMES[short], str(given["threads"])
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        # A cache of its own: the end token that `open_regard` replaces is part of a converted model.
        environment["REGARD_CACHE"] = str(Path(given["bundle"]).parent / "cache")
        worker = json.dumps({**given, "contender": short})
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.generate_cpu", "--work", worker],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.version: str = self._answer()["version"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process has ended, with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def round(self, prompts: Sequence[Ids], new: int) -> tuple[Times, list[Ids]]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        return Times(answer["seconds"], answer["cpu"]), answer["texts"]

    def close(self) -> None:
        self.process.communicate()  # closes its standard input, at which it ends


def read_rate(threads: int, rounds: int = 10) -> float:
    """Bytes per second at which so many threads read memory, at best."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    values = torch.ones(64 << 20)  # 256 MB, more than any cache
    best = 0.0
    for _ in range(rounds):
        begun = time.perf_counter()
        values.sum()
        best = max(best, values.nbytes / (time.perf_counter() - begun))
    torch.set_num_threads(before)
    return best


def measure(case: Case, contenders: dict[str, Contender], prompts: list[Ids], rounds: int) -> list[dict[str, Any]]:
    """The rows of one case."""
    times: dict[str, list[Times]] = {short: [] for short in contenders}
    texts: dict[str, list[Ids]] = {}
    for number in range(rounds + 1):  # the first warms up
        for short, contender in contenders.items():
            took, texts[short] = contender.round(prompts, case.new)
            if number:
                times[short].append(took)
            print(f"{case}, {NAMES[short]}: {case.tokens / took.seconds:.1f} tokens/s", flush=True)
    return [_row(case, short, times, texts[short]) for short in contenders]


def _row(case: Case, short: str, times: dict[str, list[Times]], texts: list[Ids]) -> dict[str, Any]:
    own = times[short]
    row: dict[str, Any] = {
        "case": str(case),
        "contender": NAMES[short],
        "tokens/s, best": case.tokens / min(one.seconds for one in own),
        "tokens/s, median": case.tokens / statistics.median(one.seconds for one in own),
        "CPU ms/token": 1e3 * statistics.median(one.cpu for one in own) / case.tokens,
    }
    if wrong := [len(text) for text in texts if len(text) != case.new]:
        row["contender"] += f" (A TEXT HAS {wrong[0]} TOKENS)"
    for other in ("hf", "llama.cpp"):
        pairs = list(zip(times.get(other, ()), own, strict=False))
        row[f"times {other}"] = statistics.median(a.seconds / b.seconds for a, b in pairs) if pairs else None
        row[f"CPU time, times {other}"] = statistics.median(a.cpu / b.cpu for a, b in pairs) if pairs else None
    return row


def run(arguments: argparse.Namespace, folder: Path) -> None:
    import torch

    from benchmarks.common import machine, report
    from regard.importing.gguf import import_gguf

    bundle, q8 = folder / "bundle", folder / "q8_0.gguf"
    import_gguf(arguments.gguf, bundle, compare=False)
    write_q8(arguments.gguf, q8)
    given = {"bundle": str(bundle), "q8": str(q8), "gguf": str(arguments.gguf.resolve()), "threads": arguments.threads}
    given["longest"] = max(case.prompt + case.new for case in arguments.cases)
    contenders = {
        short: Contender(short, given, arguments.llama_python if short == "llama.cpp" else sys.executable)
        for short in arguments.contenders
    }
    rows: list[dict[str, Any]] = []
    rates = [read_rate(arguments.threads)]
    for case in arguments.cases:
        rows += measure(case, contenders, read_prompts(bundle, arguments.text, case), arguments.rounds)
        rates.append(read_rate(arguments.threads))
    for contender in contenders.values():
        contender.close()
    load = os.getloadavg()
    facts = {
        **machine(torch.device("cpu")),
        **{_PACKAGES[short]: contender.version for short, contender in contenders.items()},
        "model": arguments.gguf.name, "threads": arguments.threads, "rounds": arguments.rounds,
        "Q8_0 MB": q8.stat().st_size / 1e6, "memory read, GB/s": max(rates) / 1e9, "load": f"{load[0]:.1f} {load[1]:.1f}",
    }  # fmt: skip
    report("generate_cpu", rows, facts, arguments.out)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="a LLaMA in llama.cpp's format")
    parser.add_argument("--text", type=Path, default=TEXT, help="where prompts come from")
    parser.add_argument("--cases", default=CASES, help=f"BATCHxPROMPT+NEW,... (default: {CASES})")
    parser.add_argument("--contenders", default=",".join(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms up")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/generate_cpu.json)")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.work is None and parsed.gguf is None:
        parser.error("--gguf is needed")
    parsed.contenders = parsed.contenders.split(",")
    if unknown := [name for name in parsed.contenders if name not in NAMES]:
        parser.error(f"--contenders knows {', '.join(NAMES)}, but not {', '.join(unknown)}")
    try:
        parsed.cases = [Case.parse(part) for part in parsed.cases.split(",")]
    except ValueError as error:
        parser.error(f"--cases: {error}")
    return parsed


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parse(arguments)
    if parsed.work is not None:
        work(json.loads(parsed.work))
        return
    with tempfile.TemporaryDirectory(prefix="generate-") as folder:
        run(parsed, Path(folder))


if __name__ == "__main__":
    main()
