"""Which models a server is given, and what clients call them."""

from __future__ import annotations

from collections.abc import Sequence

from regard.bundle import Bundle, find_bundle, load_bundle
from regard.errors import UserError
from regard.serve.served_encoder import TASKS as ENCODER_TASKS


def find_bundles(models: Sequence[str]) -> list[Bundle]:
    """The bundles of these names: translation models, one for each pair of languages, and other models, each with its own name;
    checked before anything slow is done."""
    if not models:
        raise UserError("no model is named; name bundles or run folders: regard serve -m runs/en-de -m runs/de-en")
    found: dict[tuple[str, str], Bundle] = {}
    for model in models:
        bundle = load_bundle(find_bundle(model))
        if bundle.task not in ("translate", "generate", *ENCODER_TASKS):
            raise UserError(
                f"{bundle.folder}: must be a model that translates, continues, embeds, classifies or tags text or fills blanks, "
                f"but is one for the task {bundle.task}; name another with -m"
            )
        is_named = bundle.task != "translate"
        for pair in [("", served_name(bundle))] if is_named else bundle.pairs:
            if pair not in found:
                found[pair] = bundle
                continue
            same = f"are both called {pair[1]}" if is_named else f"both translate {' to '.join(pair)}"
            remedy = "rename one of the folders" if is_named else "serve one of them"
            raise UserError(f"{bundle.folder} and {found[pair].folder} {same}; {remedy}")
    return list({id(bundle): bundle for bundle in found.values()}.values())


def served_name(bundle: Bundle) -> str:
    """What clients call a model that does not translate: the name of its folder, or of the run that made it."""
    folder = bundle.folder.resolve()
    return folder.parent.name if folder.name == "model" else folder.name
