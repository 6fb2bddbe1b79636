"""Commands as a person runs them, for tests."""

from __future__ import annotations

import pytest

from regard.cli import main


def fails(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; its one line."""
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("regard: ")
    assert captured.err.count("\n") == 1
    return captured.err
