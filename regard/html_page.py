"""Self-contained HTML pages without scripts: their style, sections, tables, and text with marked words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from html import escape
from typing import Any

# Chinese and Japanese by character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]")


def render_page(title: str, body: Iterable[str], style: str = "") -> str:
    """The page as HTML; `style` is added to the common style."""
    return _PAGE.format(title=escaped(title), style=_STYLE + style, body="\n".join(body))


def section(title: str, content: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{content}</section>" if content else ""


def row(name: str, content: str, kind: str = "") -> str:
    return f'<div class="{kind}"><dt>{escaped(name)}</dt><dd dir="auto">{content or "<i>(empty)</i>"}</dd></div>'


def table(heads: Iterable[str], rows: Iterable[str]) -> str:
    """A table; a heading that starts with # is for a column of numbers."""
    cells = "".join(
        f'<th class="{"number" if head[:1] == "#" else ""}">{escaped(head.lstrip("#"))}</th>' for head in heads
    )
    return f'<div class="table card"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def escaped(value: Any) -> str:
    """HTML-escaped text, with lone surrogates replaced, which UTF-8 cannot encode."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def words_of(text: str) -> list[re.Match[str]]:
    """The words and punctuation marks of a text; Chinese and Japanese by character."""
    return list(_WORD.finditer(text))


def matching_blocks(text: str, other: str) -> list[tuple[int, int]]:
    """The runs of words of `text` that are in `other` in the same order: (first, number of words)."""
    ours, theirs = [word[0] for word in words_of(text)], [word[0] for word in words_of(other)]
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a, block.size) for block in blocks if block.size]


def mark(text: str, runs: Iterable[tuple[int, int, str]]) -> str:
    """The text as HTML with runs of words marked: (first, number of words, CSS class)."""
    words, pieces, end = words_of(text), [], 0
    for first, size, kind in runs:
        start = words[first].start()
        pieces.append(escaped(text[end:start]))
        end = words[first + size - 1].end()
        pieces.append(f"<mark{f' class={kind}' if kind else ''}>{escaped(text[start:end])}</mark>")
    return "".join(pieces) + escaped(text[end:])


def mark_matches(translation: str, reference: str) -> str:
    """The translation with the words that match the reference marked."""
    return mark(translation, [(first, size, "") for first, size in matching_blocks(translation, reference)])


_STYLE = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #ffffff; --ink: #1f2328; --soft: #636a73; --line: #e3e3de;
  --one: #2f6fd0; --two: #d1701a; --faint: #b9c3d3; --mark: #dcefdc; --good: #267a45; --bad: #b3372f; }
@media (prefers-color-scheme: dark) { :root { --page: #15171a; --card: #1d2024; --ink: #e4e6e8; --soft: #98a0a9;
  --line: #30353b; --one: #78a9f5; --two: #f0a057; --faint: #4a5464; --mark: #23472f;
  --good: #74c893; --bad: #f08a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; font-size: 15px; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 48px; }
p, h1, h2, h3, dl, dd, figure, pre { margin: 0; }
header p, section > p { color: var(--soft); }
.over { font-size: 12px; letter-spacing: .08em; text-transform: uppercase; }
h1 { font-size: 30px; line-height: 1.25; font-weight: 650; overflow-wrap: anywhere; }
h2 { font-size: 18px; font-weight: 650; margin: 36px 0 10px; }
h3 { font-size: 14px; font-weight: 600; }
section > p { margin-bottom: 10px; }
.card, .tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; margin-top: 22px; }
.tiles p { font-size: 13px; color: var(--soft); overflow-wrap: anywhere; }
.tiles strong { display: block; font-size: 24px; font-weight: 650; line-height: 1.35; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.table { overflow-x: auto; padding: 4px 8px; max-height: 520px; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td, .joined td { border-bottom: 0; } .joined td { padding-bottom: 0; }
th { font-size: 13px; font-weight: 500; color: var(--soft); position: sticky; top: -4px; background: var(--card); }
.number { text-align: right; white-space: nowrap; }
tr.best td { font-weight: 650; } tr.best td:first-child { color: var(--good); }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 12.5px; }
td code { color: var(--soft); overflow-wrap: anywhere; } pre { overflow-x: auto; white-space: pre-wrap; }
.sample { margin-bottom: 12px; }
.sample dl > div { display: grid; grid-template-columns: 110px 1fr; gap: 12px; padding: 3px 0; }
.sample dt { font-size: 13px; color: var(--soft); line-height: 22px; } .sample .reference dd { font-weight: 600; }
.sample .reference { padding-bottom: 8px !important; border-bottom: 1px solid var(--line); margin-bottom: 6px; }
dd { overflow-wrap: anywhere; }
mark { background: var(--mark); color: inherit; border-radius: 3px; padding: 1px 2px; margin: 0 -2px; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.pairs > div { display: grid; grid-template-columns: minmax(110px, 200px) 1fr; gap: 12px; padding: 3px 0; }
.pairs dt { color: var(--soft); overflow-wrap: anywhere; }
.settings { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 12px; }
.settings h3 { margin-bottom: 6px; font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.settings .pairs { font-size: 14px; } .settings .pairs > div { grid-template-columns: 40% 1fr; }
.warning { color: var(--bad) !important; font-weight: 600; }
@media (max-width: 560px) { main { padding: 20px 12px 32px; } h1 { font-size: 26px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .tiles strong { font-size: 22px; } .card { padding: 12px; }
  .sample dl > div { grid-template-columns: 1fr; gap: 0; } table { font-size: 13px; }
  .pairs > div { grid-template-columns: 38% 1fr; } th, td { padding: 6px 4px; }
  .table { padding: 4px; } th { font-size: 12px; } }
@media print { .card, .tiles > div { break-inside: avoid; } .table { max-height: none; } }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
