"""A server with several models and a run, and a browser that notes what should not happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from regard.bundle import load_bundle, load_weights, save_bundle
from tests.browser import new_page
from tests.serve.server import GOLDEN, Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


# The golden model is sure of everything: unlikely words and translations are offered, too, so that there is something to choose.
OFFERS_ALL = "import regard.translation.alternatives as found; found.LEAST = 0.0"


def relabelled(folder: Path, source: str, target: str) -> Path:
    """The golden bundle, which reverses letters, as a model between other languages."""
    golden = load_bundle(GOLDEN)
    save_bundle(
        folder,
        load_weights(golden),
        golden.config,
        golden.tokenizer,
        "[data]\n",
        source=source,
        target=target,
        decode=golden.decode,
        max_length=golden.max_length,
        facts={},
    )
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """src-tgt, tgt-src and en-de."""
    folder = tmp_path_factory.mktemp("models")
    models = [relabelled(folder / "back", "tgt", "src"), relabelled(folder / "en-de", "en", "de")]
    with running(*(part for model in models for part in ("-m", str(model))), code=OFFERS_ALL) as one:
        yield one


class Noted(list[str]):
    """What a page did that it should not do."""

    is_refusal_expected = False


def watch(page: Page, url: str) -> Noted:
    """Note errors, dialogs and requests to other places."""
    noted = Noted()

    def console(message: Any) -> None:
        is_refusal = message.text.startswith("Failed to load resource")
        if message.type == "error" and not (is_refusal and noted.is_refusal_expected):
            noted.append(message.text)

    page.on("pageerror", lambda error: noted.append(str(error)))
    page.on("console", console)
    page.on("request", lambda request: None if request.url.startswith(url) else noted.append(request.url))
    page.add_init_script("window.alert = () => { window.ran = true; };")
    return noted


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    """The page, opened."""
    with open_page(browser, server.url) as page:
        yield page


@pytest.fixture
def refused_page(browser: Browser, server: Running) -> Iterator[Page]:
    """The same for tests in which the server refuses something, which browsers write into the console."""
    with open_page(browser, server.url, is_refusal_expected=True) as page:
        yield page


@contextmanager
def open_page(browser: Browser, url: str, *, is_refusal_expected: bool = False, **settings: Any) -> Iterator[Page]:
    with new_page(browser, **settings) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        noted = watch(page, url)
        noted.is_refusal_expected = is_refusal_expected
        page.goto(url)
        wait_for_scripts(page)
        yield page
    assert noted == []


def wait_for_scripts(page: Page) -> None:
    """Until the page is ready to be used: its scripts have run, and know the server's languages."""
    page.locator(".tabs [aria-current]").wait_for()
