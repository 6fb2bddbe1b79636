"""The models that come with Regard: bundles in this folder, each named by its languages."""

from __future__ import annotations

from pathlib import Path

BUILTIN = Path(__file__).parent
DEFAULT = "en-de"  # where no model is named


def builtin_models() -> dict[str, Path]:
    """Their folders by name, the default first."""
    folders = [folder for folder in BUILTIN.glob("*") if (folder / "config.json").is_file()]
    return {folder.name: folder for folder in sorted(folders, key=lambda one: (one.name != DEFAULT, one.name))}
