"""Screenshots of the page of `regard serve` for the README, written to docs/.

    python -m scripts.screenshots [--run runs/multi30k-cpu] [--writer SmolLM2-135M-Instruct]

It starts a server, opens the page in Chromium and writes docs/page-*.png, each reduced to 256 colours. The training view needs
the folder of a run, the writing view a language model with a chat template; without these, the other pictures are taken.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image

from regard.builtin import builtin_models
from regard.bundle import find_bundle
from tests.browser import chromium
from tests.serve.server import running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).parents[1] / "docs"
TEXT = "Where is the nearest train station? She gave me a beautiful present for my birthday."
_COLOURS = 256
_GAP = 2
_PATIENCE = 600_000  # milliseconds: the first explanation loads torch


def translated(page: Page, text: str = TEXT) -> None:
    page.get_by_label("text to translate").fill(text)
    page.locator("#out:not(.waiting) .w").nth(8).wait_for()


def with_a_word_open(page: Page) -> None:
    translated(page)
    page.locator("#out .s").nth(1).locator(".w").nth(1).click()
    page.locator("#popover li button").nth(1).wait_for()


def with_terms(page: Page) -> None:
    page.get_by_label("text to translate").fill("Where is Mary? Our cat likes this house.")
    page.locator("#terms-button").click()
    for source, target in (("train station", "Bahnhof"), ("house", "Gebäude"), ("cat", "Kater")):
        page.get_by_label("In English").fill(source)
        page.get_by_label("In German").fill(target)
        page.keyboard.press("Enter")
    page.get_by_label("Leave untranslated").fill("Mary")
    page.keyboard.press("Enter")
    page.locator("#out:not(.waiting) .w.held").nth(2).wait_for()
    page.evaluate("document.activeElement.blur()")


def edited(page: Page) -> None:
    translated(page)
    page.locator("#edit").click()
    page.keyboard.press("Control+End")
    page.keyboard.type(" Ich freue mich sehr.")


def explained(page: Page) -> None:
    page.get_by_role("link", name="Explain").click()
    page.locator("#explained h1").wait_for()


def trained(page: Page) -> None:
    page.get_by_role("link", name="Training").click()
    page.locator(".run-chart polyline").first.wait_for()


def written(page: Page) -> None:
    page.locator("#write-length").select_option(label="short")
    page.locator("#write-temperature").select_option(label="the likeliest")
    page.get_by_label("how the text begins").fill("The history of the town begins with a river")
    page.get_by_role("button", name="Write", exact=True).click()
    page.get_by_role("button", name="Go on").wait_for()
    page.locator("#written .w").nth(9).click()
    page.locator("#popover li button").nth(1).wait_for()


def answered(page: Page) -> None:
    page.locator("#write-temperature").select_option(label="the likeliest")
    page.get_by_role("button", name="Chat", exact=True).click()
    for question in ("What is the capital of France?", "And of Italy?"):
        page.get_by_label("your message").fill(question)
        page.get_by_label("your message").press("Enter")
        page.get_by_role("button", name="Send").wait_for()


Scheme = Literal["light", "dark"]
Screen = tuple[Callable[["Page"], None], int, int, Scheme]
SCREENS: dict[str, Screen] = {
    "translate": (with_a_word_open, 1180, 660, "light"),
    "translate-dark": (with_a_word_open, 1180, 660, "dark"),
    "terms": (with_terms, 1180, 720, "light"),
    "explain": (explained, 1180, 1120, "light"),
}
TRAINING: Screen = (trained, 1180, 860, "light")


def take(
    browser: Browser, url: str, prepare: Callable[[Page], None], width: int, height: int, scheme: Scheme
) -> Image.Image:
    """A screenshot of the page after `prepare`."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(_PATIENCE)
    page = context.new_page()
    page.goto(url)
    page.locator(".tabs [aria-current]").wait_for()  # the scripts have run
    prepare(page)
    page.wait_for_timeout(400)  # let animations finish
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    context.close()
    return picture


def save(picture: Image.Image, name: str) -> None:
    """Write docs/page-NAME.png."""
    path = DOCS / f"page-{name}.png"
    picture.quantize(_COLOURS, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}  {picture.width} x {picture.height}, {path.stat().st_size:,} bytes")


def beside_each_other(pictures: Sequence[Image.Image]) -> Image.Image:
    """The pictures in one row."""
    width = sum(picture.width for picture in pictures) + _GAP * (len(pictures) - 1)
    whole = Image.new("RGB", (width, max(picture.height for picture in pictures)), "#30353b")
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width + _GAP
    return whole


def take_writing(browser: Browser, writer: Path) -> None:
    """The writing view: a text with a word open, and beside it a chat on a phone."""
    with running(model=writer) as server:
        pictures = [
            take(browser, server.url, written, 1000, 700, "light"),
            take(browser, server.url, answered, 390, 700, "dark"),
        ]
        save(beside_each_other(pictures), "write")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="an English-German model (default: the built-in ones)")
    parser.add_argument("--run", help="a run folder, for the training view")
    parser.add_argument("--writer", help="a language model with a chat template, for the writing view")
    parser.add_argument("--only-writer", action="store_true", help="take the picture of the writing view alone")
    arguments = parser.parse_args()
    if arguments.writer:
        with chromium() as browser:
            take_writing(browser, find_bundle(arguments.writer))
    if arguments.only_writer:
        return
    first, *others = [find_bundle(name) for name in ([arguments.model] if arguments.model else builtin_models())]
    run = ["--run", arguments.run] if arguments.run else []
    models = [part for other in others for part in ("-m", str(other))]
    screens = {**SCREENS, "training": TRAINING} if run else SCREENS
    with running(*run, *models, model=first) as server, chromium() as browser:
        for name, (prepare, width, height, scheme) in screens.items():
            save(take(browser, server.url, prepare, width, height, scheme), name)
        phones = [
            take(browser, server.url, prepare, 390, 844, "dark") for prepare in (with_a_word_open, edited, explained)
        ]
        save(beside_each_other(phones), "phone")


if __name__ == "__main__":
    main()
