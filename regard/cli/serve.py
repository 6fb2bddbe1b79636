"""`regard serve`: models behind HTTP."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from regard.cli.common import ALL, add_adapter, add_model, checked_batch, verb
from regard.errors import UserError


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "serve",
        run,
        "serve a page and the APIs of LibreTranslate, DeepL and OpenAI over HTTP",
        "Serve one or more models over HTTP: a page for translating, writing, explaining and watching a training run, the APIs of "
        "LibreTranslate and DeepL for translation models, and OpenAI's for language models. The server documents its API at /docs.",
    )
    add_model(parser, several=ALL)
    add_adapter(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 picks a free one (default: 8000)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="server processes that share the port (default: 1)"
    )
    parser.add_argument("--keys", type=Path, metavar="FILE", help="file of API keys; without it no key is needed")
    parser.add_argument("--new-key", metavar="NAME", help="add a key with this name to --keys FILE, print it and exit")
    parser.add_argument(
        "--glossaries",
        type=Path,
        metavar="DIR",
        help="folder where clients may store glossaries with DeepL's API, each key its own; needs --keys",
    )
    parser.add_argument(
        "--run",
        dest="watched",  # `run` is taken: the verb's function
        type=Path,
        metavar="DIR",
        help="show a training run on the page; without -m, serve its model if it already has one",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer to this name in the Host header, too, such as translate.example.org; .example.org stands for all names in "
        "it, * for any (default: localhost and the address of --host; with 0.0.0.0 every address and every name without a dot); "
        "repeatable",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network of a proxy whose X-Forwarded-For names the client, and whose connections are not limited by "
        "address; repeatable",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="change a limit, such as --limit characters=10000; repeatable",
    )


def run(arguments: argparse.Namespace) -> None:
    """Serve until a signal ends it; with --new-key, only add a key."""
    from regard.bundle import find_bundle
    from regard.serve.keys import add_key
    from regard.serve.limits import Limits
    from regard.serve.watch import Watch

    if arguments.new_key is not None:
        if arguments.keys is None:
            raise UserError("--new-key needs --keys FILE, where the hash of the key is stored")
        sys.stdout.write(add_key(arguments.keys, arguments.new_key) + "\n")
        return
    limits = Limits().changed(arguments.limit)
    # Paths, not names: the working folder may hold a folder called en-de.
    named = arguments.model or _builtin_folders() or [None]
    if arguments.watched is not None:
        Watch(arguments.watched)  # a wrong name fails at once
        if arguments.model is None:
            named = [arguments.watched] if (arguments.watched / "model" / "config.json").is_file() else []
    models = [str(find_bundle(model)) for model in named]
    if arguments.adapter is not None:
        if len(models) != 1:
            raise UserError("--adapter goes with one -m MODEL, the model that it was made for")
        from regard.adapter import adapted

        models = [str(adapted(Path(models[0]), arguments.adapter))]
    batch = checked_batch(arguments)
    try:
        from regard.serve.web.server import Settings, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise UserError(
            f"serve needs the package {error.name}, which is missing; install it with pip install 'regard[serve]'"
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
            allowed_hosts=arguments.allow_host,
            trusted_proxies=arguments.trusted_proxy,
            glossaries=arguments.glossaries,
        )
    )


def _builtin_folders() -> list[Path]:
    """The built-in models that can run here: an encoder's tokenizer needs a package that translation does without."""
    from importlib.util import find_spec

    from regard.builtin import DEFAULTS, builtin_models

    missing = () if find_spec("tokenizers") else DEFAULTS.values()
    return [folder for name, folder in builtin_models().items() if name not in missing]
