"""`regard serve`: load the models, listen, and stop without losing anything that was accepted."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import uvicorn

from regard.bundle import Bundle
from regard.errors import UserError
from regard.serve.document_files import DocumentFiles
from regard.serve.keys import Keys, load_keys
from regard.serve.limits import Limits
from regard.serve.served_model import ServedModel, find_bundles
from regard.serve.service import Service
from regard.serve.watch import Watch
from regard.serve.web.app import make_app
from regard.serve.web.gate import Admission, Gate
from regard.serve.web.logs import log, set_up_logs
from regard.serve.web.prometheus import Metrics
from regard.serve.web.protocol import make_protocol
from regard.serve.web.workers import supervise
from regard.translation.languages import detect

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_KEPT_BYTES = 32 << 20  # the largest block that is kept; glibc takes no more


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    models: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8000
    engine: str = "auto"
    device: str = "auto"
    batch: int = 0
    keys: Path | None = None
    limits: Limits = field(default_factory=Limits)
    workers: int = 1  # server processes
    is_shared: bool = True  # whether requests share batches
    run: Path | None = None  # a run folder to watch


class Server(uvicorn.Server):
    """On SIGTERM or Ctrl-C it goes on listening, to say that it takes nothing more, until what it took is done."""

    def __init__(self, config: uvicorn.Config, admission: Admission) -> None:
        super().__init__(config)
        self.admission = admission
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.admission.is_draining:  # asked twice: at once
            super().handle_exit(sig, frame)
            self.force_exit = True
            return
        self.admission.is_draining = True
        log("stopping", signal=signal.Signals(sig).name, inside=self.admission.in_flight)

    async def on_tick(self, counter: int) -> bool:
        if self.admission.is_draining and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        left = self.admission.limits.drain_seconds
        while self.admission.in_flight and left > 0:
            await asyncio.sleep(0.05)
            left -= 0.05
        self.should_exit = True


def serve(settings: Settings) -> None:
    """Serve until a signal comes."""
    if not 1 <= settings.workers <= 256:
        raise UserError(f"--workers must be between 1 and 256, but is {settings.workers}")
    set_up_logs()
    listener = listen(settings.host, settings.port)  # before models are loaded: a taken port is said at once
    with listener, TemporaryDirectory(prefix="regard-serve-") as folder:
        if settings.workers == 1:
            run_worker(settings, listener, Path(folder))
        else:
            bundles_of(settings)  # what is wrong with them is said once
            supervise(settings.workers, run_worker, (settings, listener, Path(folder)), Path(folder))


def run_worker(settings: Settings, listener: socket.socket, folder: Path) -> None:
    """One server process on a socket that listens already; `folder` is for documents until they are fetched."""
    metrics = Metrics()
    service = load_service(settings, metrics)
    keys = load_keys(settings.keys) if settings.keys else Keys()
    watch = Watch(settings.run) if settings.run else None
    app = make_app(service, DocumentFiles(folder), keys, metrics, watch)
    server = Server(uvicorn_config(app, settings.limits), app.admission)
    # What was loaded stays until the end: the collector need not look through it again and again.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    keep_memory()
    threading.Thread(target=detect, args=("warm up",), daemon=True).start()  # its first use takes most of a second
    host, port = listener.getsockname()[:2]
    models = [f"{source}-{target}" for source, target in sorted(service.pairs)]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log("listening", process=os.getpid(), address=address, models=models)
    if sys.stderr.isatty() and settings.workers == 1:
        sys.stderr.write(f"\n  {address} in a browser; Ctrl-C stops it\n\n")
    server.run(sockets=[listener])
    service.close()
    app.log_turned_away()  # what was counted since the last second
    log("stopped")


def keep_memory() -> None:
    """Let freed memory be used again instead of being given back and taken anew.

    What a batch computes with is tens of megabytes for each thread of the engine. glibc decides by what was freed before whether it
    keeps such memory, so that a server's memory would swing with the sizes of batches, and each swing costs time. Here the two
    limits stand from the start where glibc moves them in the end. Whatever is larger still goes back at once. Elsewhere (musl,
    macOS, Windows) nothing is done."""
    mallopt = None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)


def load_service(settings: Settings, metrics: Metrics) -> Service:
    models = [
        ServedModel.load(
            bundle,
            settings.limits,
            engine=settings.engine,
            device=settings.device,
            batch=settings.batch,
            shared=settings.is_shared,
            observe=metrics.observer,
        )
        for bundle in bundles_of(settings)
    ]
    return Service(models, settings.limits)


def bundles_of(settings: Settings) -> list[Bundle]:
    """The models to serve; a run may be watched without any."""
    return find_bundles(settings.models) if settings.models or settings.run is None else []


def uvicorn_config(app: Gate, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        http=make_protocol(app),  # on h11: the other one that uvicorn knows reads headers of any size
        ws="none",
        lifespan="off",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=max(1, int(limits.drain_seconds)),
        h11_max_incomplete_event_size=32_768,  # of headers
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    if not 0 <= port <= 65_535:
        raise UserError(f"--port must be between 0 and 65535, but is {port}; 0 takes any that is free")
    listener = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol named, asyncio turns Nagle's algorithm off; else every answer waits 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UserError(f"cannot listen on {host} port {port} ({error.strerror}); name another with --port") from None
    listener.setblocking(False)
    return listener
