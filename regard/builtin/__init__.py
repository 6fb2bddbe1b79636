"""The models that come with Regard: bundles in this folder. Those that translate are named by their languages."""

from __future__ import annotations

from pathlib import Path

BUILTIN = Path(__file__).parent
DEFAULT = "en-de"  # where no model is named
DEFAULTS = {"embed": "minilm-en-de"}  # the same, by task, for other tasks than translation


def shown_name(folder: Path) -> str:
    """A model's folder as messages name it: a built-in model by its name, since people do not know where it lies.

    >>> shown_name(BUILTIN / "en-de"), shown_name(Path("runs/mine"))
    ('en-de', 'runs/mine')
    """
    return folder.name if folder.parent == BUILTIN else str(folder)


def builtin_models() -> dict[str, Path]:
    """Their folders by name, the default first."""
    folders = [folder for folder in BUILTIN.glob("*") if (folder / "config.json").is_file()]
    return {folder.name: folder for folder in sorted(folders, key=lambda one: (one.name != DEFAULT, one.name))}
