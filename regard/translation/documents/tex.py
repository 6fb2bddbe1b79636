r"""LaTeX: paragraphs, headings and captions are translated; commands, formulas, code and comments stay.

Commands around words, such as \emph{...}, follow their words; citations, references and short formulas move as they are. A command
that is not known separates texts, and its arguments stay: a class or package may define anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from regard.translation.documents.document import Document, from_pieces, read_text
from regard.translation.markup.elements import TextRun
from regard.translation.markup.run_builder import RunBuilder

_AROUND_WORDS = frozenset(
    "emph textbf textit textsc textsf textrm textsl underline uline enquote mbox text textnormal textmd textup "
    "textcolor href".split()
)
# Commands whose argument is a text of its own.
_TEXTS = frozenset(
    "title subtitle section subsection subsubsection paragraph subparagraph chapter part caption footnote thanks "
    "frametitle framesubtitle section* subsection* subsubsection* paragraph* chapter* part* caption* footnotetext "
    "marginpar parbox centerline hypertarget".split()
)
_SKIPPED_ARGUMENTS = {"href": 1, "parbox": 1, "textcolor": 1, "hypertarget": 1}  # before the text
_INLINE = frozenset(
    "cite citep citet parencite textcite autocite footcite nocite ref eqref pageref autoref cref Cref nameref url texttt "
    "verb ldots dots LaTeX TeX label gls ac includegraphics footnotemark copyright S P dag euro".split()
)
_UNTOUCHED = frozenset(
    "equation equation* align align* gather gather* multline multline* eqnarray eqnarray* displaymath math verbatim "
    "verbatim* lstlisting minted Verbatim tikzpicture thebibliography filecontents filecontents* array alltt comment "
    "algorithm algorithmic Highlighting".split()
)
# Every repetition ends at the next mark of its kind or is bounded, so that a file of unfinished marks takes linear time.
_OPTIONS = re.compile(r"(?:\s*\[[^\[\]]{0,999}\])*")
_TOKEN = re.compile(
    r"(?P<comment>%[^\n]*\n?[ \t]*)|"
    r"(?P<begin>\\begin\{(?P<name>[^{}]{1,60})\})|(?P<end>\\end\{[^{}]{1,60}\})|"
    r"(?P<display>\$\$(?:[^$]|\$(?!\$))*+\$\$|\\\[(?:[^\\]|\\[^\[\]])*+\\\])|"
    r"(?P<math>\$(?:[^$\\]|\\.)++\$|\\\((?:[^\\]|\\[^()])*+\\\))|"
    r"(?P<verb>\\verb\*?(?P<delimiter>[^\w\s*]).{0,300}?(?P=delimiter)|\\lstinline(?P<other>[^\w\s]).{0,300}?(?P=other))|"
    r"(?P<command>\\(?P<word>[A-Za-z@]+\*?))|(?P<escaped>\\[%&_#${} ,;!~-])|"
    r"(?P<break>\\\\\*?(?:\[[^\]]{0,20}\])?|&|\n[ \t]*\n\s*)|(?P<brace>[{}])",
    re.DOTALL,
)
_APART = re.compile("( *)\x01([^\x01]*)\x01( *)")
_BODY = re.compile(r"\\begin\{document\}")
_PREAMBLE_TEXT = re.compile(r"\\(?:title|subtitle)\s*\{")


def open_tex(data: bytes) -> Document:
    """The text between \begin{document} and \\end{document}, and the title; the whole file if it has no preamble."""
    text, bom = read_text(data)
    body = _BODY.search(text)
    if body is None:
        return _document([text], [0], bom)
    end = text.rfind(r"\end{document}")
    end = end if end > body.end() else len(text)
    pieces, to_translate = [], list[int]()
    position, closing = 0, _closing_braces(text[: body.start()])
    for title in _PREAMBLE_TEXT.finditer(text, 0, body.start()):
        close = closing.get(title.end() - 1, title.end() + 1) - 1
        pieces += [text[position : title.end()], text[title.end() : close]]
        to_translate.append(len(pieces) - 1)
        position = close
    pieces += [text[position : body.end()], text[body.end() : end], text[end:]]
    return _document(pieces, [*to_translate, len(pieces) - 2], bom)


def _document(pieces: list[str], to_translate: Sequence[int], bom: bytes) -> Document:
    document = from_pieces(pieces, to_translate, bom, parse_markup=parse_tex)

    def save(translations: Sequence[str]) -> bytes:
        return document.save([_APART.sub(_apart, translation) for translation in translations])

    return replace(document, save=save, joins_lines=True)


def _apart(found: re.Match[str]) -> str:
    """Something that stood between spaces, between spaces again."""
    before = found[1][:1] or ("" if found.start() == 0 or found.string[found.start() - 1].isspace() else " ")
    after = found[3][:1] or (
        "" if found.end() == len(found.string) or found.string[found.end()] in ".,;:!?)\n" else " "
    )
    return before + found[2] + after


_BRACE = re.compile(r"\\.|%[^\n]*|[{}]", re.DOTALL)


def _closing_braces(text: str) -> dict[int, int]:
    """The place after the closing brace for each opening one that has one."""
    found, around = {}, list[int]()
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            around.append(brace.start())
        elif brace[0] == "}" and around:
            found[around.pop()] = brace.end()
    return found


def parse_tex(text: str) -> list[str | TextRun]:
    r"""A `MarkupParser` for LaTeX.

    >>> [part if isinstance(part, str) else part.text for part in parse_tex(r"See \emph{this} in~\cite{a}. % why")]
    ['See this in~. ', '% why']
    """
    return _Parser(text).parts()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._builder = text, RunBuilder()
        self._closing = _closing_braces(text)
        # Open braces, innermost last: the command that one belongs to, or None. Their closing braces end what they began.
        self._braces: list[str | None] = []

    def parts(self) -> list[str | TextRun]:
        text, position = self._text, 0
        while found := _TOKEN.search(text, position):
            self._plain(text[position : found.start()])
            position = self._token(found)
        self._plain(text[position:])
        return self._builder.parts()

    def _plain(self, text: str) -> None:
        self._builder.text(text)

    def _token(self, found: re.Match[str]) -> int:
        """Handle one piece of markup; returns the position after it."""
        builder = self._builder
        if found["begin"]:
            return self._environment(found)
        if found["command"]:
            return self._command(found, found["word"])
        if found["math"] or found["verb"]:
            self._empty(found.start(), found.end())
        elif found["escaped"]:
            builder.text(found[0])
        elif found["brace"] == "{":
            self._open(None, "{")
        elif found["brace"]:
            self._close()
        else:
            builder.separator(found[0])
        return found.end()

    def _empty(self, start: int, end: int) -> None:
        """Something without words that moves as it is; marked if it stands between spaces."""
        text = self._text
        is_apart = text[start - 1 : start].isspace() and text[end : end + 1].isspace() and "\x01" not in text[start:end]
        self._builder.empty(f"\x01{text[start:end]}\x01" if is_apart else text[start:end])

    def _open(self, command: str | None, literal: str) -> None:
        self._braces.append(command)
        if command in _AROUND_WORDS:
            self._builder.open(literal)
        else:
            self._builder.separator(literal)

    def _close(self) -> None:
        command = self._braces.pop() if self._braces else None
        if command in _AROUND_WORDS and self._builder.innermost.startswith(f"\\{command}"):
            self._builder.close("}")
        else:
            self._builder.separator("}")

    def _environment(self, found: re.Match[str]) -> int:
        name = found["name"]
        end = found.end()
        if name in _UNTOUCHED:
            closing = self._text.find(f"\\end{{{name}}}", end)
            end = len(self._text) if closing < 0 else closing + len(name) + 6
        else:  # its arguments are no text: columns of a table, options of a figure
            end = self._after_arguments(end)
        self._builder.separator(self._text[found.start() : end])
        return end

    def _after_arguments(self, position: int, most: int = 9) -> int:
        """The place after the options and arguments that begin here."""
        for _ in range(most):
            options = _OPTIONS.match(self._text, position)
            after = options.end() if options else position
            after = self._closing.get(after, after)
            if after == position:
                break
            position = after
        return position

    def _command(self, found: re.Match[str], word: str) -> int:
        text, end = self._text, found.end()
        options = _OPTIONS.match(text, end)
        end = options.end() if options else end
        for _ in range(_SKIPPED_ARGUMENTS.get(word, 0)):
            end = self._closing.get(end, end)
        if (word in _AROUND_WORDS or word in _TEXTS) and text.startswith("{", end):
            self._open(word, text[found.start() : end + 1])
            return end + 1
        stop = end if word == "item" else self._after_arguments(found.end())
        if word in _INLINE:
            self._empty(found.start(), stop)
            return stop
        spaces = re.compile(r"[ \t]*").match(text, stop)
        stop = spaces.end() if spaces else stop
        self._builder.separator(text[found.start() : stop])
        return stop
