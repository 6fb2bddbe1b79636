"""The time from the last keystroke to the translation on the page of `regard serve`, in a real browser.

    python -m benchmarks.page_typing -m MODEL [--times 20]

A script types short sentences, a key every 30 ms; the time runs from the last key event to the frame after the translation
was drawn, including the pause in which the page waits for more keys. Browser and server share the machine.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.common import machine, report
from regard.bundle import find_bundle
from tests.browser import chromium
from tests.serve.server import running, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

SENTENCES = [
    "Good morning!", "Where do you live?", "I am hungry.", "She reads a book.", "It is raining.", "Can you help me?",
    "We are at home.", "He likes music.", "The dog is asleep.", "What time is it?",
]  # fmt: skip
_WATCH = """() => {
  const out = document.getElementById("out");
  const text = document.getElementById("source-text");
  let last = null;
  window.spans = [];
  text.addEventListener("input", () => { last = performance.now(); });
  new MutationObserver(() => {
    // What was drawn while keys were still to come does not count.
    if (last === null || text.value !== window.typed || !out.querySelector(".w")) return;
    const began = last;
    last = null;
    requestAnimationFrame(() => window.spans.push(performance.now() - began));
  }).observe(out, { childList: true });
}"""


def measure(page: Page, sentences: list[str], times: int) -> list[float]:
    """Milliseconds from the last key to the translation, for each sentence."""
    text = page.get_by_label("text to translate")
    page.locator(".tabs [aria-current]").wait_for()  # the scripts have run
    page.evaluate(_WATCH)
    for number in range(times):
        text.fill("")
        page.locator("#out:empty").wait_for(state="attached")
        text.focus()
        sentence = sentences[number % len(sentences)]
        page.evaluate("(sentence) => { window.typed = sentence; }", sentence)
        page.keyboard.type(sentence, delay=30)
        until(lambda number=number: page.evaluate("window.spans.length") > number)  # type: ignore[misc]
    spans: list[float] = page.evaluate("() => window.spans")
    return spans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with running(model=find_bundle(arguments.model)) as server, chromium() as browser:
        page = browser.new_page()
        page.goto(server.url)
        measure(page, SENTENCES, 2)  # warm up
        page.reload()
        spans = measure(page, SENTENCES, arguments.times)
        facts = {
            **machine(torch.device("cpu"), ["ctranslate2", "playwright"]), "chromium": browser.version, "model": arguments.model,
        }  # fmt: skip
    row = {
        "sentences": len(spans),
        "median ms": statistics.median(spans),
        "least ms": min(spans),
        "most ms": max(spans),
    }
    report("page_typing", [row], facts, arguments.out)


if __name__ == "__main__":
    main()
