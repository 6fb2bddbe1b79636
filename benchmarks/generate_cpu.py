"""Speed of generation on CPUs compared: Regard with CTranslate2, Hugging Face generate and llama.cpp continue the same prompts
with the same weights, greedily.

    python -m benchmarks.generate_cpu --gguf SmolLM2-135M-Instruct.Q4_1.gguf --threads 2
    python -m benchmarks.generate_cpu --gguf FILE.gguf --batch 1 --contenders regard-int8,llama.cpp --llama-python VENV/bin/python

Prompts are 32 tokens of a text, 128 new ones follow, and the end token is ignored. The GGUF file, a LLaMA, is imported as `regard
import` does; for llama.cpp the same weights are written again as Q8_0, so that both compute with 8 bits. Each contender runs in a
process of its own with so many threads, they take turns, and the best of its rounds counts: the machine may be shared. Times run
from lists of ids to lists of ids, prompts included. llama.cpp gets the prompts of a batch one after the other, since
llama-cpp-python has no batches. It needs the package llama-cpp-python, which is built from source, perhaps in an environment of its
own (--llama-python).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAMES = {
    "regard-int8": "Regard, CTranslate2 int8",
    "regard-fp32": "Regard, CTranslate2 fp32",
    "hf": "Hugging Face generate, fp32",
    "llama.cpp": "llama.cpp, Q8_0",
}
PROMPT, NEW = 32, 128
TEXT = Path(__file__).parents[1] / "data" / "tatoeba" / "test.en.xz"

Ids = list[int]
Generate = Callable[[Sequence[Ids]], list[Ids]]


# --- the contenders, each in its own process ---


def open_regard(weights: str, bundle_folder: Path, threads: int) -> Generate:
    from regard.bundle import load_bundle
    from regard.data.huggingface import Controls
    from regard.data.tokenizer import Tokenizer
    from regard.generate.engines.ctranslate2_text_engine import CTranslate2TextEngine
    from regard.generate.options import SearchOptions

    bundle = load_bundle(bundle_folder)
    # The end token is an id that no text has, so that all texts are equally long.
    last = bundle.config.vocab_size - 1
    vars(bundle)["tokenizer"] = Tokenizer((), controls=Controls(last + 1, start=last, end=last, stops=(last,)))
    engine = CTranslate2TextEngine(bundle, weights)  # type: ignore[arg-type]
    options = SearchOptions(beam=1, alpha=0.0, max_extra=NEW)
    return lambda prompts: [list(found[0].ids) for found in engine.generate(prompts, options)]


def open_hugging_face(gguf: Path, threads: int) -> Generate:
    import torch
    import transformers

    torch.set_num_threads(threads)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts: Sequence[Ids]) -> list[Ids]:
        ids = torch.tensor(prompts)
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        texts: list[Ids] = found[:, ids.shape[1] :].tolist()
        return texts

    return generate


def open_llama(q8: Path, threads: int) -> Generate:
    llama_cpp: Any = __import__("llama_cpp")
    model = llama_cpp.Llama(
        str(q8), n_ctx=PROMPT + NEW + 8, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False
    )

    def one(prompt: Ids) -> Ids:
        model.reset()
        found: Ids = []
        for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0, reset=True):
            found.append(int(token))
            if len(found) == NEW:
                break
        return found

    return lambda prompts: [one(prompt) for prompt in prompts]


def work(given: dict[str, Any]) -> None:
    """One contender, in a process of its own: opens the model, then answers each line of standard input with a round's time."""
    short, threads = given["contender"], given["threads"]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to standard error
    if short.startswith("regard"):
        generate = open_regard(short.removeprefix("regard-"), Path(given["bundle"]), threads)
    elif short == "hf":
        generate = open_hugging_face(Path(given["gguf"]), threads)
    else:
        generate = open_llama(Path(given["q8"]), threads)
    for line in sys.stdin:
        prompts = json.loads(line)
        begun = time.perf_counter()
        texts = generate(prompts)
        print(json.dumps({"seconds": time.perf_counter() - begun, "texts": texts}), file=out, flush=True)


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


def read_prompts(bundle_folder: Path, text: Path, number: int) -> list[Ids]:
    from regard.bundle import load_bundle
    from regard.data.corpus import read_lines

    tokenizer = load_bundle(bundle_folder).tokenizer
    ids = tokenizer.encode(
        "\n".join(line for line, _ in zip(read_lines(text), range(50 * number), strict=False)), "target"
    )
    return [ids[n * PROMPT : (n + 1) * PROMPT] for n in range(number)]


class Contender:
    """A process that answers rounds."""

    def __init__(self, short: str, given: dict[str, Any], python: str) -> None:
        self.name, threads = NAMES[short], str(given["threads"])
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        worker = json.dumps({**given, "contender": short})
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.generate_cpu", "--work", worker],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip

    def round(self, prompts: Sequence[Ids]) -> tuple[float, list[Ids]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(prompts) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process has ended, with {self.process.wait()}")
        answer = json.loads(line)
        return answer["seconds"], answer["texts"]

    def close(self) -> None:
        self.process.communicate()  # closes its standard input, at which it ends


def run(arguments: argparse.Namespace, folder: Path) -> None:
    import torch

    from benchmarks.common import machine, report
    from regard.importing.gguf import import_gguf

    bundle, q8 = folder / "bundle", folder / "q8_0.gguf"
    import_gguf(arguments.gguf, bundle, compare=False)
    write_q8(arguments.gguf, q8)
    given = {"bundle": str(bundle), "q8": str(q8), "gguf": str(arguments.gguf.resolve()), "threads": arguments.threads}
    contenders = {
        short: Contender(short, given, arguments.llama_python if short == "llama.cpp" else sys.executable)
        for short in arguments.contenders
    }
    rows: list[dict[str, Any]] = []
    for batch in arguments.batch:
        prompts = read_prompts(bundle, arguments.text, batch)
        best: dict[str, float] = {}
        texts: dict[str, list[Ids]] = {}
        for number in range(arguments.rounds + 1):  # the first warms up
            for short, contender in contenders.items():
                seconds, texts[short] = contender.round(prompts)
                if number:
                    best[short] = min(seconds, best.get(short, seconds))
                print(f"batch {batch}, {NAMES[short]}: {batch * NEW / seconds:.1f} tokens/s", flush=True)
        for short, seconds in best.items():
            wrong = [len(text) for text in texts[short] if len(text) != NEW]
            row: dict[str, Any] = {"batch": batch, "contender": NAMES[short], "tokens/s": batch * NEW / seconds}
            if wrong:
                row["contender"] += f" (A TEXT HAS {wrong[0]} TOKENS)"
            for other in ("hf", "llama.cpp"):
                row[f"times {other}"] = best[other] / seconds if other in best else None
            rows.append(row)
    for contender in contenders.values():
        contender.close()
    load = os.getloadavg()
    facts = {
        **machine(torch.device("cpu"), ("transformers", "ctranslate2")),
        "model": arguments.gguf.name, "threads": arguments.threads, "rounds": arguments.rounds, "prompt": PROMPT, "new": NEW,
        "load": f"{load[0]:.1f} {load[1]:.1f}",
    }  # fmt: skip
    report("generate_cpu", rows, facts, arguments.out)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="a LLaMA in llama.cpp's format")
    parser.add_argument("--text", type=Path, default=TEXT, help="where prompts come from")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--contenders", default=",".join(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/generate_cpu.json)")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.work is None and parsed.gguf is None:
        parser.error("--gguf is needed")
    parsed.contenders = parsed.contenders.split(",")
    if unknown := [name for name in parsed.contenders if name not in NAMES]:
        parser.error(f"--contenders knows {', '.join(NAMES)}, but not {', '.join(unknown)}")
    parsed.batch = [int(part) for part in parsed.batch.split(",")]
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
