"""Runs in this process, without a word on the terminal."""

from __future__ import annotations

from pathlib import Path

from regard.recipe import load_recipe
from regard.training.display import Display
from regard.training.run import train


class Listener(Display):
    """Keeps what a run says."""

    said = ""

    def say(self, text: str) -> None:
        self.said += text + "\n"


def quiet(recipe: Path, out: Path, *sets: str, resume: bool = False) -> str:
    """Train as the recipe says, with these settings changed; returns what was said."""
    listener = Listener()
    train(load_recipe(recipe, sets), out, resume=resume, display=listener)
    return listener.said


def damage(path: Path) -> None:
    """Change the last byte of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
