"""The page: one HTML file with its style, its script and the data. The JSON cannot close its script element, the script
inserts text only as text, and a content security policy allows this one script and nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

from regard.explain.encoder_explanation import EncoderExplanation
from regard.explain.explanation import CAUTION, SALIENCY, AnyExplanation
from regard.explain.lines import window_note

_DIGITS = 4  # more than a screen shows
_FRAME_HEIGHT = 900

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Regard</title>
<style>{style}</style>
</head>
<body>
<div id="explain"></div>
<noscript>This page needs JavaScript to draw attention, and JavaScript is disabled.</noscript>
<script type="application/json" id="explanation">{data}</script>
{scripts}
</body>
</html>
"""


def render_page(explanation: AnyExplanation) -> str:
    """The page as one self-contained file."""
    names = ["explain.js", "explain_encoder.js"] if isinstance(explanation, EncoderExplanation) else ["explain.js"]
    style, scripts = static("explain.css"), [static(name) for name in names]
    allowed = " ".join(f"'{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        style=style,
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        data=embedded(page_data(explanation)),
    )


def render_frame(explanation: AnyExplanation) -> str:
    """The page as a frame for a notebook: with an origin of its own, so that it cannot read the page around it, and in ASCII, so
    that the script keeps its hash whatever that page's encoding."""
    page = html.escape(render_page(explanation), quote=True).encode("ascii", "xmlcharrefreplace").decode("ascii")
    what = "text" if isinstance(explanation, EncoderExplanation) else "translation"
    return (
        f'<iframe sandbox="allow-scripts" title="Explanation of a {what}" width="100%" height="{_FRAME_HEIGHT}" '
        f'style="border:0" srcdoc="{page}"></iframe>'
    )


def page_data(explanation: AnyExplanation) -> dict[str, Any]:
    """The explanation, rounded to visible digits, and the page's texts about it."""
    document = explanation.to_json()
    if isinstance(explanation, EncoderExplanation):
        return {name: _visible(value) for name, value in document.items()} | {
            "caution": CAUTION,
            "note": window_note(explanation),
        }
    for name in ("attention", "saliency"):
        document[name] = _visible(document[name])
    return document | {"caution": CAUTION, "saliency_method": SALIENCY}


def embedded(document: Any) -> str:
    """JSON that is safe inside a script element: ASCII, with nothing that HTML could take for markup."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def static(name: str) -> str:
    """A static file of the page."""
    return (files("regard.explain") / "static" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _visible(value: Any) -> Any:
    """Numbers with the digits that a page shows, at any depth."""
    if isinstance(value, dict):
        return {key: _visible(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_visible(item) for item in value]
    if isinstance(value, str) or value is None:
        return value
    rounded = round(value, _DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded
