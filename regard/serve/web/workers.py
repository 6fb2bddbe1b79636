"""Several server processes on one port: they share the listening socket, and the operating system hands each connection to one.

One process already translates on all cores; more help if Python itself (parsing, tokenizing) is the bottleneck. Each process has
its own places, queues and key rates; metrics are added up.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from regard.errors import RegardError, UserError
from regard.serve.web.logs import log, set_up_logs
from regard.serve.web.prometheus import SHARED_FOLDER

_MIN_SECONDS = 5.0  # a worker that ends sooner is not restarted


def supervise(count: int, run: Callable[..., None], arguments: tuple[object, ...], folder: Path) -> None:
    """Keep `count` processes running `run(*arguments)` until a signal arrives, then let them finish."""
    if not hasattr(os, "setpgid"):
        raise UserError("--workers must be 1 on this system: its processes cannot share a port")
    metrics = folder / "metrics"
    metrics.mkdir()
    os.environ[SHARED_FOLDER] = str(metrics)
    # Engines use this many threads; without it each process would use all cores.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))
    stopping = threading.Event()
    workers: list[BaseProcess] = []
    context = multiprocessing.get_context("spawn")  # a fork would inherit the parent's threads and locks

    def start() -> tuple[BaseProcess, float]:
        worker = context.Process(target=_work, args=(run, arguments))
        worker.start()
        workers.append(worker)
        return worker, time.monotonic()

    def stop(sig: int, frame: FrameType | None) -> None:
        stopping.set()
        for worker in workers:
            if worker.is_alive():
                worker.terminate()

    before = {sig: signal.signal(sig, stop) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        running = [start() for _ in range(count)]
        while not stopping.wait(0.1):
            for number, (worker, began) in enumerate(running):
                if worker.is_alive():
                    continue
                if time.monotonic() - began < _MIN_SECONDS:
                    stop(0, None)
                    raise RegardError("a server process ended right after it started; see its own log lines above")
                log("restarted", worker=number, code=worker.exitcode)
                running[number] = start()
    finally:
        for worker in workers:
            worker.join()
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _work(run: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """In the new process: leave signals of the terminal to the parent, and stop when the parent is gone."""
    os.setpgid(0, 0)
    set_up_logs()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    try:
        run(*arguments)
    except RegardError as error:
        log("failed", message=str(error))
        raise SystemExit(error.exit_code) from None
