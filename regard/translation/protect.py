"""Protected spans: text that is copied and not translated, such as URLs, placeholders, tags and account numbers.

In a model trained with `tokenizer.protect`, a span is one reserved piece on both sides, and its text never goes through the
model: "see <span0> for more" -> "mehr unter <span0>". In training, a span is protected if it occurs equally often on both sides;
numbering starts at a different piece for each pair, so that all reserved pieces are learnt equally well.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from regard.data.corpus import Record
from regard.data.encoding_workers import stripped_sides
from regard.data.tokenizer import NUM_SPANS, Tokenizer
from regard.translation.terms import find_terms

_SPAN = re.compile(
    r"""
      (?: https?:// | ftp:// | file:// | www\. ) [^\s<>"«»„“”‚‘’]+       # addresses of pages
    | (?<![\w.+-]) [\w.+-]{1,64} @ [\w-]{1,63} (?: \.[\w-]{1,63} )+       # of people
    | (?<![\w%]) % (?: \(\w+\) | \d+\$ )? [-+\#0]* \d* (?: \.\d+ )? (?: hh?|ll?|[zjtL] )? [sdiufxXcp@] (?!\w)   # %s, %(name)d, %1$s
    | (?<![\w%]) % \d{1,2} (?![\w%.,]) | (?<![\w%]) %n (?!\w)            # %1, %n
    | \{\{ [^{}]{0,60} \}\} | \$? \{ [\w.:!,%-]{0,40} \}                 # {{ name }}, {0}, ${HOME}
    | (?<![\w$]) \$ [A-Z_][A-Z0-9_]+                                     # $HOME
    | (?<![\w$€£¥]) [A-Z]{0,3} [$€£¥] \d+ (?: [.,]\d+ )* (?: bn | [kKmMbB] )? (?![\w$€£¥])    # $1,299.99, US$3.2bn, £5m
    | (?<![\w.,]) \d{1,3} (?: [.,\u00a0]\d{3} )+ (?: [.,]\d+ )? [ \u00a0]? [$€£¥] (?![\w$€£¥])    # 1.299,99 €
    | (?<![\w.,/-]) \d{1,2} (?: \.\d{1,2}\. | /\d{1,2}/ ) \d{4} (?! [\w/-] | [.,]\d )                  # 3.10.1990, 10/3/1990
    | (?<![\w.,/-]) \d{4} - \d{2} - \d{2} (?! [\w/-] | [.,]\d )                                         # 1990-10-03
    | </? [A-Za-z][^<>]{0,200} >                                         # <b>, </a>
    | & (?: [A-Za-z]{2,10} | \#\d{1,6} ) ;                               # &nbsp;
    | (?<![\w+]) \+ \d (?: [ \u00a0]? [/-]? [ \u00a0]? (?: \d | \(\d{1,5}\) ) ){6,16} (?! [ \u00a0/-]? \d | \w )   # +49 30 1234567
    | (?<!\w) [A-Z]{2} \d{2} [A-Z0-9]{11,30} (?!\w)                      # IBANs: DE89370400440532013000
    | (?<!\w) [A-Z]{2} \d{2} (?: [ \u00a0] (?=[A-Z]{0,3}\d) [A-Z0-9]{4} | [ \u00a0] [A-Z]{4} (?=[ \u00a0]\d{4}[ \u00a0]\d{4}) )
      (?: [ \u00a0] (?=[A-Z]{0,3}\d) [A-Z0-9]{4} ){1,6} (?: [ \u00a0] \d{1,3} )? (?!\w)                # DE89 3704 0044 0532 0130 00
    | (?<![\w.,]) \d{4} (?: [ \u00a0-] \d{4} ){2,4} (?! [\w-] | [ \u00a0.,]\d )                   # 1234 5678 9012 3456
    | (?<![\w.,]) \d{8,} (?! \w | [.,]\d )                               # a number that is a name
    | (?<![\w-]) [0-9a-fA-F]{8} (?: -[0-9a-fA-F]{4} ){3} -[0-9a-fA-F]{12} (?![\w-])              # a UUID
    | \u2581+                                                            # the space of tokenizers, not of text
    | [\u2600-\u27bf\U0001f000-\U0001faff] [\u2600-\u27bf\ufe0f\u200d\U0001f000-\U0001faff]*    # emoji, side by side
    """,
    re.VERBOSE,
)
_MAYBE = re.compile(  # rules out most text cheaply
    r"[@%{$€£¥<&\u2581\u2600-\u27bf\U0001f000-\U0001faff]|://|www\.|\+\d|\d{4}[ \u00a0-]?\d|\d[./]\d{4}|\d[ \u00a0][A-Z0-9]{4}"
    r"|[A-Z]{2}\d\d[A-Z0-9]{11}|[0-9a-fA-F]{8}-"
)


@dataclass(frozen=True)
class Protected:
    """Text with its spans taken out: each of `parts` is text or the number of a span."""

    parts: tuple[str | int, ...]
    spans: tuple[str, ...]

    def ids(self, tokenizer: Tokenizer, first: int = 0) -> list[int]:
        """Token ids; span n becomes the reserved piece n + first."""
        pieces = tokenizer.span_ids
        return tokenizer.encode_parts(
            [part if isinstance(part, str) else pieces[(part + first) % NUM_SPANS] for part in self.parts]
        )

    def ids_of_other(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Token ids of the target text, with these spans as the same reserved pieces."""
        other = protect(text, self.spans, self.spans)
        return tokenizer.encode(text, "target") if other is None else self.numbered(other).ids(tokenizer)

    def numbered(self, other: Protected) -> Protected:
        """The other side with its spans numbered as on this side."""
        parts = tuple(self.spans.index(other.spans[part]) if isinstance(part, int) else part for part in other.parts)
        return Protected(parts, self.spans)

    def restore(self, tokenizer: Tokenizer, ids: Sequence[int]) -> str | None:
        """The text of a translation with its spans restored; None if one does not occur as often as in the source."""
        numbers = {piece: number for number, piece in enumerate(tokenizer.span_ids)}
        found = [numbers.get(part, part) if isinstance(part, int) else part for part in tokenizer.decode_parts(ids)]
        counts = Counter(part for part in self.parts if isinstance(part, int))
        if counts != Counter(part for part in found if isinstance(part, int)):
            return None
        return "".join(self.spans[part] if isinstance(part, int) else part for part in found)


def find_spans(text: str, terms: Sequence[str] = ()) -> list[tuple[int, int]]:
    """The places of the spans in a text; `terms` count as spans."""
    if terms:
        return _longest([*find_spans(text), *find_terms(text, terms)])
    if not _MAYBE.search(text):
        return []
    places = []
    for match in _SPAN.finditer(text):
        span = match[0]
        if span.startswith(("http", "ftp", "file", "www")):
            # Final punctuation belongs to the sentence, not to the URL; so does a closing bracket, unless one was opened.
            has_open = not {"(", "[", "{"}.isdisjoint(span)
            span = span.rstrip(".,;:!?'…" if has_open else ".,;:!?'…)]}")
        if span:
            places.append((match.start(), match.start() + len(span)))
    return places


def _longest(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places without overlaps: the longer one wins."""
    kept: list[tuple[int, int]] = []  # in order
    for begin, end in sorted(places, key=lambda place: place[0] - place[1]):
        after = bisect_left(kept, (end, end))  # only the one before that may overlap
        if not (after and kept[after - 1][1] > begin):
            kept.insert(after, (begin, end))
    return kept


def protect(text: str, kept: Container[str] | None = None, terms: Sequence[str] = ()) -> Protected | None:
    """The text with its spans taken out, only those in `kept` if given; `terms` count as spans. None if there are none."""
    return take_out(text, find_spans(text, terms), kept)


def take_out(
    text: str, places: Sequence[tuple[int, int]], kept: Container[str] | None = None, most: int = NUM_SPANS
) -> Protected | None:
    """The text with these places taken out, only those with text in `kept` if given; None if there are none. At most `most`
    distinct spans are taken out, by default as many as there are reserved pieces; later ones stay in the text."""
    if kept is not None:
        places = [(begin, end) for begin, end in places if text[begin:end] in kept]
    numbers: dict[str, int] = {}
    parts: list[str | int] = []
    done = 0
    for begin, end in places:
        span = text[begin:end]
        if span not in numbers and len(numbers) == most:
            continue
        if done < begin:
            parts.append(text[done:begin])
        parts.append(numbers.setdefault(span, len(numbers)))
        done = end
    if not numbers:
        return None
    if done < len(text):
        parts.append(text[done:])
    return Protected(tuple(parts), tuple(numbers))


def encode_pairs(
    tokenizer: Tokenizer, src: Sequence[str], tgt: Sequence[str], targets: Sequence[str] = ()
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of both sides of pairs. If the tokenizer protects, spans on both sides become reserved pieces. In a model for several
    directions `targets` has the target language of each pair, and the source begins with its tag."""
    src_ids, tgt_ids = tokenizer.encode_batch(src, "source"), tokenizer.encode_batch(tgt, "target")
    if tokenizer.protects:
        for number, pair in enumerate(zip(src, tgt, strict=True)):
            if protected := _protect_pair(*pair):
                first = zlib.crc32(pair[0].encode("utf-8", "replace"))
                src_ids[number], tgt_ids[number] = (side.ids(tokenizer, first) for side in protected)
    if tokenizer.targets:
        src_ids = [[*tokenizer.target_tag(one), *ids] for one, ids in zip(targets, src_ids, strict=True)]
    return src_ids, tgt_ids


def encode_records(tokenizer: Tokenizer, records: Sequence[Record]) -> tuple[list[list[int]], list[list[int]]]:
    """As `encode_pairs`, for the records of a corpus; `Corpus.languages` come after their texts."""
    targets = [record.texts[-1] for record in records] if tokenizer.targets else ()
    return encode_pairs(tokenizer, *stripped_sides(records), targets)


def _protect_pair(src: str, tgt: str) -> tuple[Protected, Protected] | None:
    found = [Counter(text[begin:end] for begin, end in find_spans(text)) for text in (src, tgt)]
    left = protect(src, {span for span, count in found[0].items() if found[1][span] == count})
    if left is None:
        return None
    right = protect(tgt, left.spans)
    assert right is not None
    return left, left.numbered(right)
