"""HTML and XML whose text is translated and whose tags are kept.

Tags that separate text (paragraphs, cells, line breaks) stay where they are. Tags inside a sentence (bold, links) are taken out,
the sentence is translated whole, and they are put back around the translation of the words that they enclosed: where that is
found in the sentence, else at the same share of its length. Scripts, styles, comments, code and `translate="no"` stay untouched.

XML does not say which of its tags separate: an element that has text beside it, in what encloses it, is taken for a part of a
sentence, any other separates; `Xml` says it better, where somebody knows.
"""

from __future__ import annotations

import html
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from regard.decode.sentences import Split, split_text
from regard.serve.backslashes import escaped_again, places_of_escaped, with_backslashes
from regard.serve.refusal import Refused

# Inside a sentence; any other tag separates.
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins mark q s small span strike strong sub sup time tt u".split()
)
_UNTOUCHED = frozenset("script style code pre textarea kbd samp var svg math template noscript iframe object".split())
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
# More than this separates, too: each element is a search for its place, and its words are translated once more.
DEEPEST, MOST = 4, 50
_LOOK_BACK = 100
_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)
_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")  # what `split_text` cuts at
_RAW = frozenset("script style textarea iframe xmp".split())
# A comment, a declaration or a tag. A tag ends at the first ">" outside of quotes, and a "<" before that means that it is none;
# every length is bounded, or ends at the next "<", so that a page of unfinished tags is read in linear time.
_MARKUP = re.compile(
    r"<!--|<!\[CDATA\[|<[!?][^<>]{0,9999}>|"
    r"<(?P<slash>/?)(?P<name>[A-Za-z][\w:.-]{0,99})"
    r"(?:[^<>\"']|(?>\"[^\"<>]*\"|\"[^\"]{0,9999}\")|(?>'[^'<>]*'|'[^']{0,9999}')){0,999}+>",
    re.DOTALL,
)
_NO = re.compile(r"""\stranslate\s*=\s*["']?no["'\s/>]|\sclass\s*=\s*("[^"]*|'[^']*|)\bnotranslate\b""", re.IGNORECASE)


@dataclass(frozen=True)
class Xml:
    """What is known of a text's tags, by their names."""

    separating: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()  # of sentences
    untouched: frozenset[str] = frozenset()
    by_outline: bool = True  # whether tags that are in none of these may separate


@dataclass(eq=False)
class Inline:
    """An element inside a run of text: its tags as they were written, and which characters it encloses."""

    opening: str
    closing: str = ""  # until it is known
    start: int = 0
    end: int = 0
    parent: Inline | None = None


class Tag(NamedTuple):
    inline: Inline
    is_closing: bool

    def __str__(self) -> str:
        return self.inline.closing if self.is_closing else self.inline.opening


@dataclass
class Run:
    """Text without a separating tag in it, unescaped, with the tags of inline elements between."""

    tokens: list[str | Tag] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(token for token in self.tokens if isinstance(token, str))


Cut = Callable[[str], list[str | Run]]  # a text as literal markup and runs of text


class _Parser:
    """Cuts a page into literal markup and runs of text. It is a scanner of its own because the one in Python's library takes
    minutes for a page of unfinished tags, and does not tell end tags as they were written."""

    def __init__(self, xml: Xml | None = None) -> None:
        self._xml = xml
        self._is_beside_text: Iterator[bool] = iter(())  # for each start tag of XML
        self.parts: list[str | Run] = []
        self._open: list[tuple[str, Inline]] = []  # inline elements of the current run that are not closed yet
        self._count = 0  # inline elements of the current run
        self._kept: list[str] = []  # tags of the untouched element that we are in, outermost first

    def cut(self, text: str) -> list[str | Run]:
        if self._xml is not None:
            self._is_beside_text = iter(_outline(text))
        position = 0
        while position < len(text):
            found = _MARKUP.search(text, position)
            start = found.start() if found else len(text)
            if start > position:
                self._text(text[position:start])
            if found is None:
                break
            position = self._markup(text, found)
        self._close_run()
        return self.parts

    def _markup(self, text: str, found: re.Match[str]) -> int:
        """Take one piece of markup; where the next thing begins."""
        raw, name = found[0], found["name"] or ""
        if self._xml is None:
            name = name.lower()
        if raw == "<![CDATA[":
            end = text.find("]]>", found.end())
            stop = end + 3 if end >= 0 else len(text)
            self._literal(text[found.start() : stop])
            return stop
        if raw == "<!--":
            end = text.find("-->", found.end())
            stop = end + 3 if end >= 0 else len(text)  # a comment that is not closed goes on to the end
            self._literal(text[found.start() : stop])
            return stop
        if not name:
            self._literal(raw)  # a declaration
            return found.end()
        if found["slash"]:
            self._end_tag(name, raw)
            return found.end()
        if self._xml is not None:
            self._start_xml_tag(name, raw, self._xml)
            return found.end()
        self._start_tag(name, raw)
        if name in _RAW and not raw.endswith("/>"):
            # Nothing is markup in there but its own end.
            closing = re.compile(rf"</{name}(?![\w-])", re.IGNORECASE).search(text, found.end())
            stop = closing.start() if closing else len(text)
            self._literal(text[found.end() : stop])
            return stop
        return found.end()

    def _start_tag(self, name: str, raw: str) -> None:
        is_empty = name in _VOID or raw.endswith("/>")
        if self._kept or (not is_empty and (name in _UNTOUCHED or _NO.search(raw))):
            if not is_empty:
                self._kept.append(name)
            self._literal(raw)
        elif name in _INLINE and not is_empty and len(self._open) < DEEPEST and self._count < MOST:
            self._count += 1
            inline = Inline(raw)
            self._run().tokens.append(Tag(inline, False))
            self._open.append((name, inline))
        else:
            self._literal(raw)

    def _start_xml_tag(self, name: str, raw: str, xml: Xml) -> None:
        is_empty = raw.endswith("/>")
        is_beside_text = next(self._is_beside_text, False)
        is_inside = name in xml.inside or (name not in xml.separating and (is_beside_text or not xml.by_outline))
        if self._kept or name in xml.untouched:
            if not is_empty:
                self._kept.append(name)
            self._literal(raw)
        elif is_inside and len(self._open) < DEEPEST and self._count < MOST:
            self._count += 1
            inline = Inline(raw)
            self._run().tokens.append(Tag(inline, False))
            if is_empty:
                self._run().tokens.append(Tag(inline, True))
            else:
                self._open.append((name, inline))
        else:
            self._literal(raw)

    def _end_tag(self, name: str, raw: str) -> None:
        if self._kept:
            # What is left open inside ends with what is around it; a stray end tag ends nothing.
            if name in self._kept[-_LOOK_BACK:]:
                while self._kept.pop() != name:
                    pass
            self._literal(raw)
        elif self._open and self._open[-1][0] == name:
            inline = self._open.pop()[1]
            inline.closing = raw
            self._run().tokens.append(Tag(inline, True))
        else:
            self._literal(raw)

    def _text(self, text: str) -> None:
        if self._kept:
            self._literal(text)
        else:
            self._run().tokens.append(html.unescape(text))

    def _run(self) -> Run:
        if not self.parts or not isinstance(self.parts[-1], Run):
            self.parts.append(Run())
        run = self.parts[-1]
        assert isinstance(run, Run)
        return run

    def _literal(self, raw: str) -> None:
        self._close_run()
        self.parts.append(raw)

    def _close_run(self) -> None:
        """End the current run. An element that is still open there reaches over a separating tag, so it separates, too."""
        if not self.parts or not isinstance(self.parts[-1], Run):
            return
        run = self.parts.pop()
        assert isinstance(run, Run)
        unclosed = [inline for _, inline in self._open]
        self._open.clear()
        self._count = 0
        self.parts += separate(run, unclosed)


def _outline(text: str) -> list[bool]:
    """For each start tag of an XML text, whether there is text beside its element; a text that is not well-formed is refused."""
    around: list[tuple[str, list[bool]]] = [
        ("", [False])
    ]  # names of open elements, and whether they have text of their own
    found: list[list[bool]] = []
    position = 0
    while tag := _MARKUP.search(text, position):  # from the end of each comment, as `_Parser.cut` does
        if text[position : tag.start()].strip():
            around[-1][1][0] = True
        position = tag.end()
        name, raw = tag["name"], tag[0]
        if raw in ("<!--", "<![CDATA["):
            end = text.find("-->" if raw == "<!--" else "]]>", position)
            if end < 0:
                raise _not_well_formed()
            position = end + 3
        elif name and tag["slash"]:
            if around.pop()[0] != name or not around:
                raise _not_well_formed()
        elif name:
            found.append(around[-1][1])
            if not raw.endswith("/>"):
                around.append((name, [False]))
    if text[position:].strip():
        around[-1][1][0] = True
    if len(around) > 1:
        raise _not_well_formed()
    return [has_text for (has_text,) in found]


def _not_well_formed() -> Refused:
    return Refused(400, "text must be XML in which each tag that is opened is closed, in order")


def separate(run: Run, separating: Iterable[Inline]) -> list[str | Run]:
    """A run without these elements: their tags become literal and cut it."""
    separating = frozenset(separating)
    parts: list[str | Run] = [Run()]
    for token in run.tokens:
        if isinstance(token, Tag) and token.inline in separating:
            parts += [str(token), Run()]
        else:
            last = parts[-1]
            assert isinstance(last, Run)
            last.tokens.append(token)
    return [part for part in parts if isinstance(part, str) or part.tokens]


def _measure(run: Run) -> list[Inline]:
    """The elements of a run, outer ones first, each told where it starts and ends and what it lies in."""
    inlines: list[Inline] = []
    around: list[Inline] = []
    position = 0
    for token in run.tokens:
        if isinstance(token, str):
            position += len(token)
        elif token.is_closing:
            token.inline.end = position
            around.pop()
        else:
            token.inline.start, token.inline.parent = position, around[-1] if around else None
            around.append(token.inline)
            inlines.append(token.inline)
    return inlines


# --- a page as sentences, and back ---


class _Sentence(NamedTuple):
    """A sentence of a run with its elements; `first` is its number among all sentences, those of its elements follow; `escaped`
    says which of its characters were written with a backslash."""

    text: str
    inlines: list[Inline]
    first: int
    escaped: frozenset[int]


class Page:
    """A text with markup whose `sentences` are to be translated; `join` makes the page of their translations."""

    def __init__(
        self,
        text: str,
        language: str,
        *,
        by_sentence: bool = True,
        joins_lines: bool = False,
        xml: Xml | None = None,
        cut: Cut | None = None,
    ) -> None:
        """`joins_lines`: a line break is a space like others, and ends no sentence. `cut` is for another markup, in which
        nothing is escaped but by a backslash."""
        self.sentences: list[str] = []
        self._joins_lines = joins_lines
        self._escape: Callable[[str], str] = str if cut else _escape_xml if xml is not None else _escape
        self._parts: list[str | tuple[Split, list[_Sentence]]] = []
        for part in cut(text) if cut else _Parser(xml).cut(text):
            if isinstance(part, str):
                self._parts.append(part)
            else:
                self._add_run(part, language, by_sentence)

    def _add_run(self, run: Run, language: str, by_sentence: bool) -> None:
        text = run.text
        # Of one length, so that all places stay what they are.
        split = split_text(_BREAK.sub(" ", text) if self._joins_lines else text, language, by_sentence=by_sentence)
        bounds = _bounds(split)
        inlines = _measure(run)
        escaped = places_of_escaped(token for token in run.tokens if isinstance(token, str))
        crossing = [one for one in inlines if not _inside(one, bounds)]
        if crossing:
            for part in separate(run, crossing):
                if isinstance(part, str):
                    self._parts.append(part)
                else:
                    self._add_run(part, language, by_sentence)
            return
        sentences = []
        for a, b in bounds:
            mine: list[Inline] = []
            for one in inlines:  # what is empty at the edge of two sentences belongs where its parent does
                if a <= one.start and one.end <= b and (one.parent is None or one.parent in mine):
                    mine.append(one)
            inlines = [one for one in inlines if one not in mine]
            for one in mine:
                one.start, one.end = one.start - a, one.end - a
            whole = text[a:b]
            marked = frozenset(place - a for place in escaped[bisect_left(escaped, a) : bisect_left(escaped, b)])
            sentences.append(_Sentence(whole, mine, len(self.sentences), marked))
            # What encloses the whole sentence finds its place without a translation of its own.
            inner = [whole[one.start : one.end] for one in mine]
            self.sentences += map(self._shown, [whole, *("" if words == whole else words for words in inner)])
        ends, every = accumulate(map(len, split.pieces)), frozenset(escaped)
        pieces = tuple(
            with_backslashes(text, every, end - len(piece), end) for piece, end in zip(split.pieces, ends, strict=True)
        )
        self._parts.append((Split(pieces, split.places), sentences))

    def _shown(self, text: str) -> str:
        """A sentence as the model sees it."""
        return " ".join(text.split()) if self._joins_lines and _BREAK.search(text) else text

    def join(self, translations: Sequence[str]) -> str:
        page = []
        for part in self._parts:
            if isinstance(part, str):
                page.append(part)
                continue
            split, sentences = part
            pieces = [self._escape(piece) for piece in split.pieces]
            for place, sentence in zip(split.places, sentences, strict=True):
                inner = translations[sentence.first + 1 : sentence.first + 1 + len(sentence.inlines)]
                target = translations[sentence.first]
                if target == self._shown(sentence.text):
                    target = sentence.text
                pieces[place] = _tagged(sentence, target, inner, self._escape)
            page.append("".join(pieces))
        return "".join(page)


def as_text(text: str) -> list[str | Run]:
    """A text without markup, for `Page`."""
    return [Run([text])] if text else []


def _inside(inline: Inline, bounds: Sequence[tuple[int, int]]) -> bool:
    """Whether an element lies in one sentence; one without text may also stand at its edges."""
    last = bisect_right(bounds, (inline.start, sys.maxsize))  # the first sentence that begins after it does
    return any(a <= inline.start and inline.end <= b for a, b in bounds[max(0, last - 2) : last])


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


def _escape_xml(text: str) -> str:
    return html.escape(text, quote=False)  # XML knows no &nbsp;


def _bounds(split: Split) -> list[tuple[int, int]]:
    """From where to where each sentence goes in the text."""
    bounds, position, places = [], 0, set(split.places)
    for number, piece in enumerate(split.pieces):
        if number in places:
            bounds.append((position, position + len(piece)))
        position += len(piece)
    return bounds


def _tagged(sentence: _Sentence, target: str, inner: Sequence[str], escape: Callable[[str], str]) -> str:
    """The translation of a sentence with its elements in it; `inner`: what they enclose, translated by itself."""
    spans: dict[Inline | None, tuple[int, int]] = {None: (0, len(target))}
    children: dict[Inline | None, list[Inline]] = {}
    for inline, words in zip(sentence.inlines, inner, strict=True):
        beside = children.setdefault(inline.parent, [])
        if target == sentence.text:
            spans[inline] = inline.start, inline.end
        else:
            parent = inline.parent
            source_span = (parent.start, parent.end) if parent else (0, len(sentence.text))
            spans[inline] = _place(inline, words, target, spans[parent], source_span, [spans[one] for one in beside])
        beside.append(inline)

    escaped = escaped_again(sentence.text, sentence.escaped, target)

    def written(start: int, end: int) -> str:
        return escape(with_backslashes(target, escaped, start, end))

    def render(parent: Inline | None) -> str:
        position, end = spans[parent]
        text = []
        for one in sorted(children.get(parent, []), key=lambda child: spans[child]):
            text += [written(position, spans[one][0]), one.opening, render(one), one.closing]
            position = spans[one][1]
        return "".join([*text, written(position, end)])

    return render(None)


def _place(
    inline: Inline,
    inner: str,
    target: str,
    span: tuple[int, int],
    source_span: tuple[int, int],
    taken: Sequence[tuple[int, int]],
) -> tuple[int, int]:
    """Where in `target`, inside `span`, an element belongs; `taken` are its neighbours, which it must not touch."""
    low, high = span
    if (inline.start, inline.end) == source_span and not any(a < high and low < b for a, b in taken):
        return low, high
    length = max(1, source_span[1] - source_span[0])
    share = ((inline.start + inline.end) / 2 - source_span[0]) / length
    free = [(a, b) for a, b in _free(low, high, taken) if b > a]
    bare = inner.strip().rstrip(".,;:!?…").strip()
    if inline.end > inline.start and bare:
        found = [
            (match.start() + a, match.end() + a)
            for a, b in free
            for match in re.finditer(rf"(?<!\w){re.escape(bare)}(?!\w)", target[a:b], re.IGNORECASE)
        ]
        if found:  # of several the one that stands most nearly where the words stood
            return min(found, key=lambda place: abs((sum(place) / 2 - low) / max(1, high - low) - share))
    words = [(m.start() + a, m.end() + a) for a, b in free for m in _WORD.finditer(target[a:b])]
    if not words:
        edge = free[0][0] if free else high
        return edge, edge
    middle = low + share * (high - low)
    if inline.start == inline.end:
        edge = min((place for word in words for place in word), key=lambda place: abs(place - middle))
        return edge, edge
    # So many words as are due, around the same share of the length.
    a, b = min(
        (region for region in free if any(region[0] <= w[0] < region[1] for w in words)),
        key=lambda region: max(region[0] - middle, middle - region[1], 0.0),
    )
    near = [word for word in words if a <= word[0] < b]
    wanted = (inline.end - inline.start) / length * (high - low)
    first = min(near, key=lambda word: abs(word[0] - (middle - wanted / 2)))
    last = min(near, key=lambda word: abs(word[1] - (middle + wanted / 2)))
    return (first[0], last[1]) if first[0] < last[1] else first


def _free(low: int, high: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    free, position = [], low
    for a, b in sorted(taken):
        if b > low and a < high:
            free.append((position, a))
            position = max(position, b)
    return [*free, (position, high)]
