"""`regard serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from regard.cli.common import ALL, add_model, checked_batch, verb
from regard.errors import UserError


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "serve",
        run,
        "translate on a page and over HTTP, with the APIs of LibreTranslate and DeepL",
        "Serve one or several models over HTTP: a page to translate, explain and watch training on, and the APIs of "
        "LibreTranslate and DeepL; /docs on the server tells more.",
    )
    add_model(parser, several=ALL)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0: any that is free (default: 8000)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="server processes on the port (default: 1)")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="API keys; without it everybody who comes is served")
    parser.add_argument("--new-key", metavar="NAME", help="add a key of this name to --keys FILE, print it and stop")
    parser.add_argument(
        "--run",
        dest="watched",  # `run` is what each verb calls its function
        type=Path,
        metavar="DIR",
        help="watch a run folder on the page; without -m its model is served, if it has one already",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="change a limit, as in --limit characters=10000",
    )


def run(arguments: argparse.Namespace) -> None:
    from regard.builtin import builtin_models
    from regard.bundle import find_bundle
    from regard.serve.keys import add_key
    from regard.serve.limits import Limits
    from regard.serve.watch import Watch

    if arguments.new_key is not None:
        if arguments.keys is None:
            raise UserError("--new-key needs --keys FILE: only a hash of the key is kept there")
        sys.stdout.write(add_key(arguments.keys, arguments.new_key) + "\n")
        return
    limits = Limits().changed(arguments.limit)
    # Folders, for their names may also be those of other folders here.
    named = arguments.model or list(builtin_models().values()) or [None]
    if arguments.watched is not None:
        Watch(arguments.watched)  # a wrong name is said at once
        if arguments.model is None:
            named = [arguments.watched] if (arguments.watched / "model" / "config.json").is_file() else []
    models = [str(find_bundle(model)) for model in named]
    batch = checked_batch(arguments)
    try:
        from regard.serve.web.run import Settings, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise UserError(
            f"serving needs more packages ({error.name} is missing); install them with pip install 'regard[serve]'"
        ) from None
    serve(
        Settings(
            models,
            host=arguments.host,
            port=arguments.port,
            engine=arguments.engine,
            device=arguments.device,
            batch=batch,
            keys=arguments.keys,
            workers=arguments.workers,
            limits=limits,
            run=arguments.watched,
        )
    )
