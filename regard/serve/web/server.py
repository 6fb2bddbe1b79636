"""`regard serve`: load the models, listen, and shut down without losing an accepted request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from regard.bundle import Bundle
from regard.errors import UserError
from regard.serve.document_files import DocumentFiles
from regard.serve.fairness import FairShares
from regard.serve.glossary_store import GlossaryStore
from regard.serve.keys import Keys, load_keys
from regard.serve.limits import Limits
from regard.serve.private_files import document_folder
from regard.serve.served_bundles import find_bundles, served_name
from regard.serve.served_encoder import TASKS as ENCODER_TASKS
from regard.serve.served_encoder import ServedEncoder
from regard.serve.served_model import ServedModel
from regard.serve.served_writer import ServedWriter
from regard.serve.service import Service
from regard.serve.watch import Watch
from regard.serve.web.app import make_app
from regard.serve.web.connections import Connections
from regard.serve.web.gate import Admission, Gate
from regard.serve.web.hosts import Hosts
from regard.serve.web.listener import Listener, raise_file_limit
from regard.serve.web.logs import log, set_up_logs
from regard.serve.web.memory import keep_memory, make_trimmer
from regard.serve.web.prometheus import Metrics
from regard.serve.web.protocol import make_protocol
from regard.serve.web.proxies import Proxies
from regard.serve.web.workers import supervise
from regard.translation.detection import detect

_BACKLOG = 4_096  # connections that wait to be accepted; the system may allow fewer


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

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
    allowed_hosts: Sequence[str] = ()  # names that the server answers to, besides its own
    trusted_proxies: Sequence[str] = ()  # addresses or networks
    glossaries: Path | None = None  # a folder for the glossaries of clients


class GracefulShutdown:
    """On SIGTERM or Ctrl-C the server keeps listening and refuses new requests until the accepted ones are done. A second signal
    ends it at once."""

    def __init__(self, server: uvicorn.Server, admission: Admission) -> None:
        self._server, self._admission = server, admission
        self._draining: asyncio.Task[None] | None = None
        self.forced_by: int | None = None  # the second signal

    def install(self) -> None:
        """Replace uvicorn's signal handlers, which would stop listening at once. Must run in the event loop; uvicorn restores the
        original handlers when it returns."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, lambda sig, frame: loop.call_soon_threadsafe(self._stop, sig))

    def _stop(self, sig: int) -> None:
        if self._admission.is_draining:
            self.forced_by = sig
            self._server.should_exit = self._server.force_exit = True
            return
        self._admission.is_draining = True
        log("stopping", signal=signal.Signals(sig).name, inside=self._admission.in_flight)
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        left = self._admission.limits.drain_seconds
        while self._admission.in_flight and left > 0:
            await asyncio.sleep(0.05)
            left -= 0.05
        self._server.should_exit = True


def serve(settings: Settings) -> None:
    """Serve until a signal arrives."""
    if not 1 <= settings.workers <= 256:
        raise UserError(f"--workers must be between 1 and 256, but is {settings.workers}")
    Hosts.of(settings.host, settings.allowed_hosts)  # so that an error in it is reported at once
    Proxies.parse(settings.trusted_proxies)
    glossaries_of(settings)
    set_up_logs()
    listener = listen(
        settings.host, settings.port
    )  # before the models are loaded, so that a taken port is reported at once
    with listener, document_folder() as folder:
        if settings.workers == 1:
            run_worker(settings, listener, folder)
        else:
            bundles_of(settings)  # so that an error in them is reported once
            supervise(settings.workers, run_worker, (settings, listener, folder), folder)


def run_worker(settings: Settings, listening: socket.socket, folder: Path) -> None:
    """Run one server process on a listening socket; `folder` holds documents until they are downloaded."""
    limits = settings.limits
    metrics = Metrics()
    service = load_service(settings, metrics)
    keys = load_keys(settings.keys) if settings.keys else Keys()
    watch = Watch(settings.run) if settings.run else None
    proxies = Proxies.parse(settings.trusted_proxies)
    hosts = Hosts.of(settings.host, settings.allowed_hosts)
    app = make_app(service, DocumentFiles(folder), keys, metrics, watch, hosts, proxies, glossaries_of(settings))
    open_files = raise_file_limit(limits.connections * 16 // 15 + 80)  # see `most_connections`
    connections = Connections.within(limits, open_files, proxies)
    connections.on_close = lambda reason: metrics.closed.labels(reason).inc()
    server = uvicorn.Server(uvicorn_config(app, connections))
    shutdown = GracefulShutdown(server, app.admission)

    # What was loaded stays until the end, so the garbage collector need not scan it again and again.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    keep_memory()
    threading.Thread(target=detect, args=("warm up",), daemon=True).start()  # the first use takes most of a second
    with Listener(listening, connections) as listener:

        def start() -> None:
            shutdown.install()
            keep_watch(connections, app.admission, metrics)
            announce(
                settings, listener, service, connections, open_files
            )  # last: from here on a signal ends it in order

        app.on_startup = start
        server.run(sockets=[listener])
    if shutdown.forced_by is not None:
        signal.raise_signal(shutdown.forced_by)
    service.close()
    app.log_turned_away()  # those of the last second
    log("stopped")


def announce(
    settings: Settings, listener: Listener, service: Service, connections: Connections, open_files: int
) -> None:
    """Say where the server listens, with what, and how many clients it can hold."""
    host, port = listener.getsockname()[:2]
    models = service.names_of_models
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log(
        "listening",
        process=os.getpid(),
        address=address,
        models=models,
        writers={name: writer.how for name, writer in service.writers.items()},
        open_files=open_files,
        connections=connections.most,
        address_connections=connections.most_of_address,
    )
    if connections.most < settings.limits.connections:
        log(
            "few open files",
            level=logging.WARNING,
            message=f"the limit of open files, {open_files}, allows {connections.most} connections instead of "
            f"{settings.limits.connections}; raise it with ulimit -n or LimitNOFILE",
        )
    if sys.stderr.isatty() and settings.workers == 1:
        sys.stderr.write(f"\n  Open {address} in a browser; Ctrl-C stops the server\n\n")


def keep_watch(connections: Connections, admission: Admission, metrics: Metrics) -> None:
    """From now on: close slow connections, log once a second how many were closed and why, and give unused memory back. Must run in
    the event loop."""
    loop = asyncio.get_running_loop()
    limits = admission.limits
    pause = min(1.0, limits.header_seconds / 4, limits.send_seconds / 4)
    reported = loop.time()
    trimmer = make_trimmer(reported)

    def tick() -> None:
        nonlocal reported
        loop.call_later(pause, tick)  # first: an error, such as one of too many open files, must not end the watch
        now = loop.time()
        connections.sweep(now)
        metrics.connections.set(len(connections))
        if connections.closed and now - reported >= 1:
            log("connections", level=logging.WARNING, open=len(connections), closed=dict(connections.closed))
            connections.closed.clear()
            reported = now
        if trimmer is not None:
            trimmer.tick(admission.in_flight, now)

    tick()


def load_service(settings: Settings, metrics: Metrics) -> Service:
    """The service with all models loaded; they report to `metrics`."""
    shares = FairShares()  # the models compete for the same cores
    models: list[ServedModel] = []
    writers: list[ServedWriter] = []
    encoders: list[ServedEncoder] = []
    for bundle in bundles_of(settings):
        where = {"engine": settings.engine, "device": settings.device}
        if bundle.task == "generate":
            name = served_name(bundle)
            observe = metrics.writing_observer(name)
            writers.append(ServedWriter.load(bundle, name, settings.limits, **where, observe=observe, shares=shares))
            continue
        if bundle.task in ENCODER_TASKS:
            name = served_name(bundle)
            observe = metrics.observer(name)
            given = {**where, "batch": settings.batch}
            encoders.append(ServedEncoder.load(bundle, name, settings.limits, **given, observe=observe, shares=shares))  # type: ignore[arg-type]
            continue
        more = {"batch": settings.batch, "shared": settings.is_shared}
        models.append(
            ServedModel.load(bundle, settings.limits, **where, **more, observe=metrics.observer, shares=shares)  # type: ignore[arg-type]
        )
    return Service(models, settings.limits, shares, writers, encoders)


def bundles_of(settings: Settings) -> list[Bundle]:
    """The models to serve; none are needed to watch a run."""
    return find_bundles(settings.models) if settings.models or settings.run is None else []


def glossaries_of(settings: Settings) -> GlossaryStore | None:
    """Where clients may store glossaries. Each has its own, so they need keys."""
    if settings.glossaries is None:
        return None
    if settings.keys is None:
        raise UserError("--glossaries needs --keys FILE: each key has its own glossaries; make one with --new-key NAME")
    return GlossaryStore(settings.glossaries, settings.limits.glossaries)


def uvicorn_config(app: Gate, connections: Connections) -> uvicorn.Config:
    """uvicorn's settings: it writes no logs of its own, and passes every request through the gate."""
    limits = app.admission.limits
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        loop="asyncio:SelectorEventLoop",  # others do not call `accept` of the listening socket, which counts
        proxy_headers=False,  # the gate reads them
        http=make_protocol(
            app, connections
        ),  # based on h11: uvicorn's other protocol, httptools, reads headers of any size
        backlog=_BACKLOG,
        ws="none",
        lifespan="on",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=max(1, int(limits.drain_seconds)),
        h11_max_incomplete_event_size=32_768,  # of headers
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket."""
    if not 0 <= port <= 65_535:
        raise UserError(f"--port must be between 0 and 65535, but is {port}; 0 picks a free one")
    listener = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio disables Nagle's algorithm only if the protocol is named; otherwise each answer waits 40 ms for an
        # acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UserError(f"cannot listen on {host} port {port} ({error.strerror}); choose another with --port") from None
    listener.setblocking(False)
    return listener
