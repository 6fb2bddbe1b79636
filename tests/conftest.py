from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The same examples every time, however slow the machine is. `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("regard", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("regard")


def pytest_configure(config: pytest.Config) -> None:
    """Tests, and the commands that they start, leave the person's own cache alone, reach this machine without a proxy, and can be
    interrupted: whoever runs the tests in the background may have had Ctrl-C ignored."""
    os.environ["REGARD_CACHE"] = tempfile.mkdtemp(prefix="regard-test-cache-")
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave their core to other tests
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ.pop("REGARD_CACHE"), ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The garbage collector does not look through what stays until the end, tests and the libraries that they import, neither while
    it is made nor during each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Whichever tests ran before."""
    random.seed(1)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Tests and fixtures of every scope compute on one thread: their tensors are small, and on a busy machine threads that wait for
    each other are ten times as slow. Tests of what threads may change ask for several themselves."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of one file: while it is open, an event loop runs, which other tests must not meet."""
    from tests.browser import chromium

    with chromium() as browser:
        yield browser
