"""Figures for publications, in the style of figures 3 to 5 of the paper: queries above, keys below, lines between them whose
opacity is the weight, one colour per head. A drawing consists of lines, boxes and words; SVG is written here, PNG by matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from regard.errors import UserError
from regard.explain.explanation import AnyExplanation, AttentionKind, by_words
from regard.generate.options import Matrix

COLOURS = (
    "#3b6fb5", "#e0832b", "#3f9a54", "#c9463d", "#8560b0", "#8c6244", "#d26fae", "#6f7680", "#a9a22c", "#2fa4b5", "#7a1f3d",
    "#86c232", "#0d5c52", "#f0a58f", "#2b2f8f", "#b416c4",
)  # fmt: skip
NAMES: dict[AttentionKind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
_COLUMN, _GAP, _FONT, _EDGE = 22.0, 150.0, 14.0, 10.0  # in pixels
_WIDTH_OF_A_LETTER = 0.58  # of the font's size, about
_FAINTEST = 0.01  # weights below are not drawn
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Stroke:
    """A line from a query to a key."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    opacity: float


@dataclass(frozen=True)
class Box:
    """A filled rectangle behind a word."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float


@dataclass(frozen=True)
class Label:
    """A word written upwards; (`x`, `y`) is the middle of its lower end if `from_below`, else of its upper end."""

    x: float
    y: float
    text: str
    from_below: bool
    opacity: float = 1.0


@dataclass
class Drawing:
    """A figure in pixels, with y pointing down."""

    width: float
    height: float
    title: str
    boxes: list[Box] = field(default_factory=list)
    lines: list[Stroke] = field(default_factory=list)
    words: list[Label] = field(default_factory=list)


def draw_attention(
    explanation: AnyExplanation,
    kind: AttentionKind = "encoder",
    layer: int | None = None,
    heads: Sequence[int] = (),
    word: str | None = None,
    pieces: bool = False,
) -> Drawing:
    """Draw one layer's attention. Layers and heads are counted from 1.

    By default the last layer but one, as in the paper, with all heads, between words; `pieces` draws it between pieces, and
    `word` only for the queries that are this word.
    """
    kinds = explanation.attention
    if kind not in kinds:
        known = f"one of {', '.join(kinds)}" if len(kinds) > 1 else next(iter(kinds))
        raise UserError(f"attention must be {known}, but is {kind!r}")
    layers = explanation.attention[kind]
    layer = max(1, len(layers) - 1) if layer is None else layer
    if not 1 <= layer <= len(layers):
        raise UserError(f"layer must be between 1 and {len(layers)}, but is {layer}")
    count = len(layers[layer - 1])
    chosen = list(heads) or list(range(1, count + 1))
    for head in chosen:
        if not 1 <= head <= count:
            raise UserError(f"head must be between 1 and {count}, but is {head}")
    queries, keys = explanation.sides(kind)
    matrices = [layers[layer - 1][head - 1] for head in chosen]
    if pieces:
        above, below = [piece.text for piece in queries.pieces], [piece.text for piece in keys.pieces]
    else:
        above, below = queries.words, keys.words
        matrices = [by_words(matrix, queries, keys) for matrix in matrices]
    rows = list(range(len(above))) if word is None else find_word(above, word)
    colours = [COLOURS[(head - 1) % len(COLOURS)] for head in chosen]
    named = "all heads" if len(chosen) == count else f"head{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))}"
    title = f"{NAMES[kind]}, layer {layer} of {len(layers)}, {named}"
    return _lay_out(above, below, matrices, colours, rows, word is not None, title)


def find_word(words: Sequence[str], word: str) -> list[int]:
    """The indices of a word: exact matches, or else matches that ignore case."""
    places = [place for place, one in enumerate(words) if one == word]
    places = places or [place for place, one in enumerate(words) if one.casefold() == word.casefold()]
    if not places:
        raise UserError(f"word must be one of {', '.join(words)}, but is {word!r}")
    return places


def _lay_out(
    above: Sequence[str],
    below: Sequence[str],
    matrices: Sequence[Matrix],
    colours: Sequence[str],
    rows: Sequence[int],
    isolated: bool,
    title: str,
) -> Drawing:
    columns = max(len(above), len(below))
    top, bottom = (
        max(map(len, words)) * _FONT * _WIDTH_OF_A_LETTER + _FONT for words in (above, below)
    )  # room for the words, written upwards
    drawing = Drawing(columns * _COLUMN + 2 * _EDGE, top + _GAP + bottom, title)
    shift = {len(above): (columns - len(above)) / 2, len(below): (columns - len(below)) / 2}

    def x(place: int, words: Sequence[str]) -> float:
        return _EDGE + (place + shift[len(words)] + 0.5) * _COLUMN

    start, end = top, top + _GAP
    strip = (_COLUMN - 4) / len(matrices)
    for number, (matrix, colour) in enumerate(zip(matrices, colours, strict=True)):
        for query in rows:
            for key, weight in enumerate(matrix[query]):
                if weight < _FAINTEST:
                    continue
                opacity = round(min(1.0, weight), 3)
                drawing.lines.append(Stroke(x(query, above), start, x(key, below), end, colour, opacity))
                if isolated:  # as in figure 3: behind each word, how much attention it gets from each head
                    left = x(key, below) - _COLUMN / 2 + 2 + number * strip
                    drawing.boxes.append(Box(left, end + 3, strip, bottom - 6, colour, opacity))
    for place, text in enumerate(above):
        faded = 0.35 if isolated and place not in rows else 1.0
        drawing.words.append(Label(x(place, above), start - 5, text, from_below=True, opacity=faded))
    drawing.words += [Label(x(place, below), end + 5, text, from_below=False) for place, text in enumerate(below)]
    return drawing


def to_svg(drawing: Drawing) -> str:
    """The drawing as an SVG document."""
    width, height, title = f"{drawing.width:g}", f"{drawing.height:g}", _xml(drawing.title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="{_FONT:g}">',
        f"<title>{title}</title>",
        *(
            f'<rect x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}" fill="{box.colour}" '
            f'fill-opacity="{box.opacity:g}"/>'
            for box in drawing.boxes
        ),
        '<g stroke-width="2" stroke-linecap="round">',
        *(
            f'<line x1="{line.x1:.2f}" y1="{line.y1:.2f}" x2="{line.x2:.2f}" y2="{line.y2:.2f}" stroke="{line.colour}" '
            f'stroke-opacity="{line.opacity:g}"/>'
            for line in drawing.lines
        ),
        "</g>",
        *(
            f'<text transform="translate({word.x:.2f} {word.y:.2f}) rotate(-90)" dominant-baseline="central" '
            f'text-anchor="{"start" if word.from_below else "end"}" fill="#1f2328" fill-opacity="{word.opacity:g}">'
            f"{_xml(word.text)}</text>"
            for word in drawing.words
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def check_matplotlib() -> None:
    """Refuse a PNG without matplotlib before anything slow is done."""
    try:
        import matplotlib  # noqa: F401 - only to see whether it is installed
    except ImportError:
        raise UserError(
            "a PNG needs matplotlib; run: pip install 'regard[figures]', or write the figure as .svg"
        ) from None


def to_png(drawing: Drawing, dots_per_inch: int = 300) -> bytes:
    """The drawing as a PNG file, drawn by matplotlib."""
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    inch = 96.0  # pixels, as SVG counts them
    figure = Figure(figsize=(drawing.width / inch, drawing.height / inch))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, drawing.width)
    axes.set_ylim(drawing.height, 0.0)  # downwards, as in SVG
    axes.axis("off")
    point = 72.0 / inch
    for box in drawing.boxes:
        axes.add_patch(
            Rectangle((box.x, box.y), box.width, box.height, color=box.colour, alpha=box.opacity, linewidth=0)
        )
    for line in drawing.lines:
        axes.plot(
            (line.x1, line.x2),
            (line.y1, line.y2),
            color=line.colour,
            alpha=line.opacity,
            linewidth=2 * point,
            solid_capstyle="round",
        )
    for word in drawing.words:
        axes.text(
            word.x,
            word.y,
            word.text,
            rotation=90,
            ha="center",
            va="bottom" if word.from_below else "top",
            fontsize=_FONT * point,
            color="#1f2328",
            alpha=word.opacity,
            parse_math=False,
        )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Title": drawing.title})
    return file.getvalue()
