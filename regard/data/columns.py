"""What the columns of a table are: which one has the label, which one or two the texts, whether there is a header, and whether a
label is one of several classes, several of them, or a number. What is not given is found in the first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from regard.data.corpus import shorten
from regard.data.tables import Cell, Nested, Row, header_of, table_suffix
from regard.errors import UserError
from regard.settings import Answer

SAMPLE = 2000  # rows to look at
MOST_CLASSES_OF_NUMBERS = 20  # with more different whole numbers as labels, these are numbers and not classes
_FEWEST_ROWS = 20  # that show which cells are labels
SEPARATORS = ("|", ";", ",")

_LABELS = (
    "label", "labels", "class", "classes", "category", "categories", "intent", "sentiment", "target", "tag", "tags", "topic",
    "score", "similarity", "rating", "stars", "emotion", "y", "gold_label", "is_duplicate",
)  # fmt: skip
_TEXTS = (
    "text", "sentence", "utterance", "question", "review", "comment", "message", "content", "body", "tweet", "document", "query",
    "phrase", "title", "description", "x",
)  # fmt: skip
_PAIRS = (
    ("sentence1", "sentence2"), ("text1", "text2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("sentence_a", "sentence_b"), ("query", "passage"), ("question", "answer"), ("question", "sentence"),
)  # fmt: skip
_NUMBERING = ("id", "idx", "index", "guid", "uid", "nr", "no", "")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are used, by name where it has names, else by number."""

    text: tuple[str, ...]
    label: str
    header: bool
    answer: Answer
    separator: str = ""  # between several labels

    def say(self, path: Path, sample: Sequence[Row]) -> str:
        """For people, such as "questions.tsv: label: column 1 (card_arrival, ...), text: column 2, no header"."""
        header = _header(sample, self.header)
        rows = sample[1:] if self.header else sample
        shown = list(dict.fromkeys(_plain(row.cell(self.label, header)) for row in rows[:50]))
        some = ", ".join(shorten(one, 30) for one in shown[:3]) + (", ..." if len(shown) > 3 else "")
        kind = {"one": "label", "several": f"labels (several, between {self.separator!r})", "number": "number"}[
            self.answer
        ]
        if self.answer == "several" and not self.separator:
            kind = "labels (several)"
        texts = " and ".join(_named(column) for column in self.text)
        used = {self.label, *self.text}
        names = sample[0].names or header or tuple(str(n + 1) for n in range(len(sample[0].cells)))
        unused = [
            _named(name or str(n + 1)) for n, name in enumerate(names) if name not in used and str(n + 1) not in used
        ]
        rest = f"; not used: {', '.join(unused[:4])}{', ...' if len(unused) > 4 else ''}" if unused else ""
        told = "" if sample[0].names else "; the first line names the columns" if self.header else "; no header"
        return f"{path.name}: {kind}: {_named(self.label)} ({some}), text: {texts}{told}{rest}"


def find_columns(
    path: Path,
    sample: Sequence[Row],
    text: Sequence[str] = (),
    label: str = "",
    header: bool | None = None,
    separator: str = "",
    answer: Answer | None = None,
) -> Columns:
    """The columns of the table that `sample` begins; what is given stays as it is."""
    if not sample:
        raise UserError(f"{path}: must have a label and a text on each line, but is empty")
    is_json = bool(sample[0].names)
    has_header = not is_json and (_has_header(sample, [*text, label]) if header is None else header)
    names = sample[0].names or _header(sample, has_header)
    rows = sample[1:] if has_header else sample
    if not rows:
        raise UserError(f"{path}: must have a label and a text on each line, but has only a header")
    known = list(names) if names else [str(n + 1) for n in range(max(len(row.cells) for row in rows))]
    text = [_check_column(path, column, known) for column in text]
    label = _check_column(path, label, known) if label else ""
    if not is_json and len(known) < 2:
        between = _BETWEEN.get(table_suffix(path), "a tab")
        raise UserError(
            f"{path}, line {rows[0].number}: must have a label and a text with {between} between them, but has one column "
            f"({shorten(_plain(rows[0].cells[0]))!r})"
        )
    columns = {name: [row.cell(name, names) for row in rows] for name in (*known, *text, label)}
    known = _without_nested(path, rows, columns, known, text, label)
    others = [name for name in known if name not in text]
    if not label and not others:
        raise UserError(f"{path}: must have a column with the label besides the text, but --text names all of them")
    chosen = label or _find_label(others, columns)
    texts = tuple(text) or _find_texts([name for name in known if name != chosen], columns, path)
    if chosen in texts:
        raise UserError(f"{path}: the label and the text must be two columns, but both are {_named(chosen)}")
    kind, between = _find_answer(columns[chosen], answer, separator)
    return Columns(texts, chosen, has_header, kind, between)


_BETWEEN = {".csv": "a comma"}


def _without_nested(
    path: Path,
    rows: Sequence[Row],
    columns: dict[str, list[Cell]],
    known: Sequence[str],
    text: Sequence[str],
    label: str,
) -> list[str]:
    """The columns without JSON objects in them, which are refused as a text, and as a label that was named or is called so."""
    nested: dict[str, tuple[Row, Nested]] = {}
    for name in columns:
        for row, cell in zip(rows, columns[name], strict=True):
            if isinstance(cell, Nested):
                nested.setdefault(name, (row, cell))
    left = [name for name in known if name not in nested]
    labels = [label] if label else [name for name in nested if name.lower() in _LABELS]
    if not label and {name.lower() for name in left} & set(_LABELS):
        labels = []
    for name, option in (*((one, "--text") for one in text), *((one, "--label") for one in labels)):
        if name in nested:
            raise nested_cell(path, *nested[name], name, option)
    return left


def nested_cell(path: Path, row: Row, cell: Nested, column: str, option: str) -> UserError:
    """The error for a JSON object where a text or label should be."""
    what = "a text" if option == "--text" else "a label or a list of labels"
    return UserError(
        f"{path}, line {row.number}: {_named(column)} must be {what}, but is {cell.shown}; name another column with {option}"
    )


def _check_column(path: Path, column: str, known: Sequence[str]) -> str:
    """A column that was given, by its name where it has one of its own."""
    if column in known:
        return column
    if column.isdecimal() and 1 <= int(column) <= len(known):
        name = known[int(column) - 1]
        return name if name and known.count(name) == 1 else column
    raise UserError(
        f"{path}: has no column {column!r}, but {', '.join(map(_named, known[:12]))}; name one with --text or --label"
    )


def _header(sample: Sequence[Row], has_header: bool) -> tuple[str, ...]:
    return header_of(sample[0]) if has_header else ()


def _has_header(sample: Sequence[Row], given: Sequence[str]) -> bool:
    """Whether the first line names the columns: it has the names that were given, or those that people use."""
    first = [_plain(cell).strip() for cell in sample[0].cells]
    while first and not first[-1]:  # Excel ends lines with a comma for each empty column
        first.pop()
    if any(name in first for name in given if name and not name.isdecimal()):
        return True
    if any(_is_number(cell) or len(cell) > 40 for cell in first) or len(set(first)) < len(first):
        return False
    words = {*_LABELS, *_TEXTS, *_NUMBERING, *(name for pair in _PAIRS for name in pair)}
    known = sum(cell.lower() in words for cell in first)
    if known >= 2 or (known == 1 and len(first) <= 2 and all(len(cell.split()) == 1 for cell in first)):
        return True
    columns = list(zip_longest(*(row.cells for row in sample)))
    return any(map(_names_labels, columns)) and not any(map(_repeats_first, columns))


def _names_labels(cells: Sequence[Cell]) -> bool:
    """Whether the first cell of a column names it: it occurs once, and the others are labels, which all occur again."""
    counts = Counter(map(_plain, cells[1:]))
    is_labels = len(cells) > _FEWEST_ROWS and len(counts) <= len(cells) / 10 and min(counts.values()) > 1
    return is_labels and _plain(cells[0]) not in {*counts, ""}


def _repeats_first(cells: Sequence[Cell]) -> bool:
    """Whether the first cell of a column of labels is one of them, so that it names nothing. An empty cell is no label."""
    first, counts = _plain(cells[0]), Counter(map(_plain, cells[1:]))
    return bool(first) and len(cells) > _FEWEST_ROWS and len(counts) <= len(cells) / 10 and first in counts


def _find_label(known: Sequence[str], columns: dict[str, list[Cell]]) -> str:
    by_name = {name.lower(): name for name in reversed(known)}
    for name in _LABELS:
        if name in by_name:
            return by_name[name]

    def unlikely(name: str) -> tuple[float, ...]:
        cells = columns[name]
        if any(isinstance(cell, list) for cell in cells):
            return (0.0, 0.0, 0.0)
        values = [_plain(cell) for cell in cells]
        distinct, length = len(set(values)), fmean(map(len, values))
        says_nothing = not any(values) or name.lower() in _NUMBERING
        is_numbering = distinct == len(values) > 2 and all(value.isdecimal() for value in values)
        repeats = distinct <= max(2, 0.5 * len(values)) or all(map(_is_number, values))
        return (float(says_nothing or is_numbering), float(not repeats), float(length > 40), distinct, length)

    return min(known, key=unlikely)


def _find_texts(known: Sequence[str], columns: dict[str, list[Cell]], path: Path) -> tuple[str, ...]:
    by_name = {name.lower(): name for name in reversed(known)}
    for pair in _PAIRS:
        if all(name in by_name for name in pair):
            return by_name[pair[0]], by_name[pair[1]]
    for name in _TEXTS:
        if name in by_name:
            return (by_name[name],)
    values = {name: [_plain(cell) for cell in columns[name]] for name in known}
    words = {name: fmean(len(value.split()) for value in cells) for name, cells in values.items()}
    texts = [name for name in known if not all(_is_number(value) or not value for value in values[name])]
    if not texts:
        raise UserError(f"{path}: must have a column with text, but has none; name it with --text")
    sentences = [name for name in texts if words[name] >= 2 and len(set(values[name])) > 1]
    if len(sentences) == 2 and len(texts) == 2:
        return sentences[0], sentences[1]
    return (max(texts, key=lambda name: fmean(map(len, values[name]))),)


def _find_answer(cells: Sequence[Cell], given: Answer | None, separator: str) -> tuple[Answer, str]:
    if any(isinstance(cell, list) for cell in cells):
        return "several", separator
    values = [value for cell in cells if (value := _plain(cell).strip())]
    if given or separator:
        answer: Answer = given or "several"
        return answer, (separator or _find_separator(values)) if answer == "several" else ""
    if values and all(map(_is_number, values)):
        is_whole = all(float(value).is_integer() for value in values)
        return ("one" if is_whole and len(set(values)) <= MOST_CLASSES_OF_NUMBERS else "number"), ""
    between = _find_separator(values)
    return ("several", between) if between else ("one", "")


def _find_separator(values: Sequence[str]) -> str:
    """What stands between labels: their parts occur in other combinations, too."""
    for separator in SEPARATORS:
        with_it = [value for value in values if separator in value]
        parts = Counter(part.strip() for value in values for part in value.split(separator))
        joined = {part.strip() for value in with_it for part in value.split(separator)}
        if len(with_it) < 0.02 * len(values) or not with_it:
            continue
        if all(joined) and len(parts) < len(set(values)) and all(parts[part] > 1 for part in joined):
            return separator
    return ""


def _is_number(value: str) -> bool:
    try:
        return float(value) == float(value)  # not NaN
    except ValueError:
        return False


def _plain(cell: Cell) -> str:
    if isinstance(cell, Nested):
        return cell.shown
    return ", ".join(cell) if isinstance(cell, list) else cell or ""


def _named(column: str) -> str:
    return f"column {column}" if column.isdecimal() else column
