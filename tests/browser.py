"""Chromium for tests of pages, and what is checked of every page: contrast, names, focus, width."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 120_000  # milliseconds for what must come, on a machine that is slow or busy

# The lowest contrast of text with what is behind it, of all elements under `root` that are seen and hold text themselves.
_CONTRAST = """(root) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const channels = (text) => { // whatever the notation: as the browser paints it
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const linear = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => [r, g, b].map(linear)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => { for (let at = one; at; at = at.parentElement) {
    const found = channels(getComputedStyle(at).backgroundColor);
    if (found[3] === 255) return found; } return [255, 255, 255]; };
  let worst = [99, "", 0];
  let count = 0;
  for (const one of document.querySelectorAll(`${root} *:not(svg *)`)) {
    const isField = one.matches("input, textarea") && one.placeholder && !one.value;
    if (!isField && ![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (!one.checkVisibility() || one.disabled || one.closest(".quiet, option, noscript")) continue;
    count += 1;
    const colour = getComputedStyle(one, isField ? "::placeholder" : null).color;
    const [a, b] = [luminance(channels(colour)), luminance(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, one.outerHTML.slice(0, 80)];
  }
  return [...worst.slice(0, 2), count];
}"""
_UNNAMED = """() => [...document.querySelectorAll(
    "a, button, [role=button], [role=application], [role=dialog], dialog, input, select, textarea, progress, nav, svg[role]")]
  .filter((one) => one.checkVisibility() && !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length
    || document.getElementById(one.getAttribute("aria-labelledby"))?.textContent.trim()))
  .map((one) => one.outerHTML.slice(0, 100))"""
_UNFOCUSED = """() => { const one = document.activeElement;
  if (!one || one === document.body) return null;
  const shown = (at) => { const style = getComputedStyle(at);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none"; };
  const marks = [one, one.parentElement, one.querySelector("rect")].filter(Boolean);
  const stroke = one.querySelector("rect.hit, rect");
  return [one.outerHTML.slice(0, 100), marks.some(shown) || Boolean(stroke && getComputedStyle(stroke).stroke !== "none")
    || one.matches(".matrix svg")]; }"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium from $REGARD_CHROMIUM or the path, else Playwright's own (`playwright install chromium`)."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("REGARD_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


@contextmanager
def new_page(browser: Browser, **settings: Any) -> Iterator[Page]:
    """A page in a context of its own, which waits as long as it may take."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    context.set_default_timeout(PATIENCE)
    try:
        yield context.new_page()
    finally:
        context.close()


def lowest_contrast(page: Page, root: str = "main") -> tuple[float, str]:
    """The ratio, and the element that has it."""
    ratio, where, count = page.evaluate(_CONTRAST, root)
    assert count > 3, f"there is hardly any text under {root}"
    return ratio, where


def unnamed(page: Page) -> list[str]:
    """What can be used or is a landmark, is seen, and has no name that a screen reader could say."""
    found: list[str] = page.evaluate(_UNNAMED)
    return found


def without_focus_mark(page: Page, most: int = 80) -> list[str]:
    """What the Tab key reaches without showing where it is. Walks through the whole page."""
    found: list[str] = []
    seen: set[str] = set()
    page.evaluate(
        "() => { const { body } = document; body.tabIndex = -1; body.focus(); body.removeAttribute('tabindex'); }"
    )
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(_UNFOCUSED)
        if at is None:
            break
        seen.add(at[0])
        if not at[1]:
            found.append(at[0])
    assert len(seen) > 3, f"the Tab key reaches next to nothing: {seen}"
    return found
