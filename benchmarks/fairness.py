"""One client sends the worst requests that the limits of `regard serve` allow, while 16 others send a sentence each and wait for
the answer: how long these wait, compared with when they are alone. And whether taking turns costs them anything when they are.

    python -m benchmarks.fairness [-m MODEL] [--seconds 40] [--only NAME ...] [--before CHECKOUT]

Each of the 16 has an address of its own (127.0.0.2 and on), and the other one has another, with eight connections. Quiet and
attacked moments take turns, so a slow moment of the machine affects both. With `--before`, a server of another checkout takes turns
with this one under the load of the 16 alone. The command fails if the p99 of the 16 triples, if one of them is refused, or if
throughput falls by more than 2%.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, print_facts, print_table, write_json
from benchmarks.serve_load import SERVE, SOURCE, Load, Seen, client, cpu_seconds, free_port, server
from regard.builtin import DEFAULT
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.data.corpus import read_lines
from regard.serve.limits import Limits
from regard.translation.long_words import MOST_CHARACTERS

NORMAL, CONNECTIONS, ROUNDS = 16, 8, 4
MOST_GROWTH, MOST_LOSS = 3.0, 0.02


def request(body: dict[str, Any], path: str = "/translate") -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(),
        len(data),
        data,
    )


def document(name: str, content: bytes, source: str, target: str) -> bytes:
    fields = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (key.encode(), value.encode())
        for key, value in (("source", source), ("target", target))
    )
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s\r\n--x--\r\n' % (
        name.encode(),
        content,
    )
    data = fields + file
    head = (
        b"POST /translate_file HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        b"Content-Length: %d\r\n\r\n"
    )
    return head % len(data) + data


def attacks(lines: list[str], source: str, target: str) -> dict[str, list[bytes]]:
    """The worst requests that are accepted, by kind."""
    most = Limits().characters
    clauses = " and ".join(
        line.rstrip(".!?").lower() for line in 10 * lines
    )  # sentences as long as the model takes them
    words = sorted({word for line in lines[:200] for word in line.lower().split() if word.isalpha()})[:100]

    attribute = 'x="y" '

    def ask(text: str | list[str], **fields: Any) -> bytes:
        return request({"q": text, "source": source, "target": target, **fields})

    return {
        "long sentences": [ask(clauses[: most // 2]), ask(clauses[most // 2 : most])],
        "no space": [ask(most * "x"), ask(most // (MOST_CHARACTERS + 1) * (MOST_CHARACTERS * "x" + " "))],
        "short texts": [ask(lines[:256])],
        "html": [
            ask(f"<p {(most - 1_000) // 6 * attribute}>{lines[0]}</p>", format="html"),
            ask("".join(f"<b>{word}</b> " for word in clauses.split())[: most // 2], format="html"),
        ],
        "markdown": [document("a.md", 30_000 * b"*a", source, target)],
        "wide beam": [ask(clauses[: most // 8], beam=16, alternatives=4)],
        "sampling": [ask(clauses[: most // 8], beam=8, sample=True)],
        "terms": [ask(" ".join(lines[:200])[:20_000], glossary=dict.fromkeys(words, "Regenschirm"))],
        "words": [ask(" ".join(lines[:300])[:20_000], alignments=True)],
    }


async def load_for(port: int, normal: list[bytes], attack: list[bytes], seconds: float) -> tuple[Seen, Seen]:
    """What the 16 and the other one see."""
    seen, other = Seen(), Seen()
    until = time.perf_counter() + seconds
    stride = len(normal) // NORMAL
    attackers = [
        asyncio.ensure_future(client(port, Load(attack, 1, address="127.0.0.99"), number, until, other))
        for number in range(CONNECTIONS if attack else 0)
    ]
    await asyncio.gather(
        *(client(port, Load(normal, 1, address=f"127.0.0.{2 + n}"), n * stride, until, seen) for n in range(NORMAL))
    )
    for one in attackers:
        one.cancel()  # closes its connection
    await asyncio.gather(*attackers, return_exceptions=True)
    return seen, other


def run(port: int, normal: list[bytes], attack: list[bytes], seconds: float, seen: Seen, other: Seen) -> None:
    for found, total in zip(asyncio.run(load_for(port, normal, attack, seconds)), (seen, other), strict=True):
        total.statuses += found.statuses
        total.seconds += found.seconds


def measure_attacks(
    model: str, normal: list[bytes], kinds: dict[str, list[bytes]], seconds: float
) -> list[dict[str, Any]]:
    rows = []
    port = free_port()
    with server([sys.executable, "-c", SERVE.format(model=model, port=port, shared=True)], port):
        run(port, normal, [], 3.0, Seen(), Seen())  # warm up
        run(port, normal, [one for some in kinds.values() for one in some], 5.0, Seen(), Seen())  # loads torch, too
        for name, attack in kinds.items():
            quiet, attacked, other = Seen(), Seen(), Seen()
            for _ in range(ROUNDS):
                run(port, normal, [], seconds / ROUNDS / 2, quiet, Seen())
                run(port, normal, attack, seconds / ROUNDS / 2, attacked, other)
            rows.append(
                {
                    "attack": name,
                    "p50 ms": f"{quiet.percentile(0.5):.0f} -> {attacked.percentile(0.5):.0f}",
                    "p99 ms": f"{quiet.percentile(0.99):.0f} -> {attacked.percentile(0.99):.0f}",
                    "times": round(attacked.percentile(0.99) / quiet.percentile(0.99), 2),
                    "requests/s": f"{2 * len(quiet.seconds) / seconds:.0f} -> {2 * len(attacked.seconds) / seconds:.0f}",
                    "refused": sum(attacked.statuses.values()) - attacked.statuses[200],
                    "the attacker's": dict(other.statuses),
                }
            )
            print(rows[-1], flush=True)
    return rows


def measure_throughput(model: str, before: Path, normal: list[bytes], seconds: float) -> dict[str, Any]:
    """The normal load on both checkouts in turns: requests and seconds of CPU."""
    checkouts = {"before": before.resolve(), "now": Path(__file__).parents[1]}
    speeds: dict[str, list[float]] = {name: [] for name in checkouts}
    cpu = dict.fromkeys(checkouts, 0.0)
    answered = dict.fromkeys(checkouts, 0)
    with ExitStack() as stack:
        running = {}
        for name, path in checkouts.items():
            port = free_port()
            command = [sys.executable, "-c", SERVE.format(model=model, port=port, shared=True)]
            environment = ["env", f"PYTHONPATH={path}"]
            running[name] = port, stack.enter_context(server([*environment, *command], port, subprocess.DEVNULL))
            run(port, normal, [], 3.0, Seen(), Seen())
        for number in range(3 * ROUNDS):
            for name in list(checkouts) if number % 2 else list(checkouts)[::-1]:
                port, process = running[name]
                seen, begun = Seen(), cpu_seconds(process)
                run(port, normal, [], seconds / ROUNDS, seen, Seen())
                cpu[name] += cpu_seconds(process) - begun
                speeds[name].append(len(seen.seconds) / (seconds / ROUNDS))
                answered[name] += len(seen.seconds)
    change = statistics.median(now / then for now, then in zip(speeds["now"], speeds["before"], strict=True))
    return {
        "requests/s before": round(statistics.median(speeds["before"]), 1),
        "requests/s now": round(statistics.median(speeds["now"]), 1),
        "throughput, times": round(change, 4),
        "CPU ms a request": {name: round(1000 * cpu[name] / max(1, answered[name]), 2) for name in checkouts},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="a bundle, run folder or built-in model (default: en-de)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="sentences, one per line (default: from Tatoeba)")
    parser.add_argument("--seconds", type=float, default=16, help="for each kind of attack, half of them quiet")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these kinds of attack")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="compare throughput with another checkout")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    measure(arguments, load_bundle(find_bundle(arguments.model)))


def measure(arguments: argparse.Namespace, bundle: Bundle) -> None:
    lines = [line for line in read_lines(arguments.source) if line.strip()]
    random.Random(1).shuffle(lines)
    normal = [request({"q": line, "source": bundle.source, "target": bundle.target}) for line in lines[:2_000]]
    kinds = attacks(lines, bundle.source, bundle.target)
    if arguments.only:
        kinds = {name: some for name, some in kinds.items() if name in arguments.only}
    facts: dict[str, Any] = machine(torch.device("cpu"), ["ctranslate2", "fastapi", "uvicorn"])
    facts |= {"cores": len(os.sched_getaffinity(0)), "model": arguments.model or DEFAULT}
    rows = measure_attacks(str(bundle.folder), normal, kinds, arguments.seconds)
    holds = {
        f"p99 under {MOST_GROWTH:g} times its value in peace": all(row["times"] < MOST_GROWTH for row in rows),
        "none of the 16 is refused": not any(row["refused"] for row in rows),
    }
    if arguments.before:
        found = measure_throughput(str(bundle.folder), arguments.before, normal, arguments.seconds)
        facts |= found
        holds[f"throughput within {MOST_LOSS:.0%} of before"] = found["throughput, times"] > 1 - MOST_LOSS
    print_facts(facts)
    print_table(rows)
    for claim, is_true in holds.items():
        print(f"{'holds' if is_true else 'FAILS'}: {claim}")
    print(f"written to {write_json('fairness', rows, {**facts, 'holds': holds}, arguments.out)}")
    if not all(holds.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
