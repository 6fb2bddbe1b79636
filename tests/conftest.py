from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_configure(config: pytest.Config) -> None:
    """Tests, and the commands that they start, leave the person's own cache alone."""
    os.environ["REGARD_CACHE"] = tempfile.mkdtemp(prefix="regard-test-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ.pop("REGARD_CACHE"), ignore_errors=True)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests compute on one thread: their tensors are small, and on a busy machine threads that wait for each other are
    ten times as slow. Tests of what threads may change ask for several themselves."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of one file: while it is open, an event loop runs, which other tests must not meet."""
    from tests.browser import chromium

    with chromium() as browser:
        yield browser
