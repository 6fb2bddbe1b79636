"""How sound the words are that are offered instead of a word of a translation, and the translations beside the best.

    python -m benchmarks.alternatives [--data DIR] [--sentences 60] [--show]      # or REGARD_BENCH_DATA=DIR

Sixty sentences in both directions (benchmarks/data/alternatives.tsv) are translated with the built-in models. At every word, each
other word that is offered is chosen, as on the page, and the sentence that results is checked by rules:

- cut: the offered word does not stand there as a whole word
- doubled: two punctuation marks or two equal words in a row that the source does not have
- unlikely: the whole sentence is less than a twentieth as likely as the best translation, by the model's own scores
- unseen word, unseen pair: the word, or the pair of it and the word before or after it, never occurs in text that people wrote:
  data/tatoeba and, with DIR, DIR/europarl/train-00 and DIR/mono/common-voice. Not every unseen pair is wrong ("die nächste
  Bahnhof" has one, a name has one, too), so the same share of the model's own translations is given beside it.

`--least 0` offers everything, likely or not.
"""

from __future__ import annotations

import argparse
import lzma
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.common import machine, report
from regard.api import Model

ROOT = Path(__file__).parents[1]
SENTENCES = ROOT / "benchmarks/data/alternatives.tsv"
UNLIKELY = 0.05
_COUNT = 8  # words offered on the page, at most
_NBEST = 5  # translations, the best included
_TOKEN = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]+")
_DOUBLED = re.compile(r"[.,;:!?]\s?[.,;:!?]|\b(\w+)\s+\1\b", re.IGNORECASE)


@dataclass(frozen=True)
class Seen:
    """The words and the pairs of neighbouring words of a language, in lower case."""

    words: set[str]
    pairs: set[int]  # hashes, to save memory

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Seen:
        seen = cls(set(), set())
        for path in paths:
            with lzma.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    tokens = _TOKEN.findall(line.lower())
                    seen.words.update(tokens)
                    seen.pairs.update(map(hash, zip(["", *tokens], [*tokens, ""], strict=True)))
        return seen

    def unseen_pairs(self, sentence: str, start: int, end: int) -> bool:
        """Whether a token that overlaps these characters forms an unseen pair with one of its neighbours."""
        found = [("", 0, 0), *((one[0].lower(), *one.span()) for one in _TOKEN.finditer(sentence)), ("", 0, 0)]
        pairs = [
            (one[0], two[0])
            for one, two in pairwise(found)
            if any(begin < end and stop > start for _, begin, stop in (one, two))
        ]
        return any(hash(pair) not in self.pairs for pair in pairs)


@dataclass(frozen=True)
class Choice:
    """A sentence, the beginning of its translation, and a word that is offered after it."""

    source: str
    before: str
    word: str


def choices(model: Model, sentence: str, **options: Any) -> Iterator[Choice]:
    """All words that are offered instead of those of the best translation."""
    [result] = model.nbest([sentence], 1, words=True)
    best, position = result.translations[0], 0
    for word in best.words:
        start = best.text.index(word.text, position)
        position = start + len(word.text)
        for one in model.alternatives(sentence, best.text[:start], k=_COUNT, **options):
            if one.word != word.text:
                yield Choice(sentence, best.text[:start], one.word)


def log_probs(model: Model, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
    tokenizer = model.bundle.tokenizer
    src = [tokenizer.encode(text, "source") for text in sources]
    tgt = [tokenizer.encode(text, "target") for text in targets]
    return [sum(values) for values in model.engine.score(src, tgt)]


def faults(choice: Choice, sentence: str, is_likely: bool, seen: Seen) -> list[str]:
    """The rules that a sentence with a chosen word breaks."""
    start = len(choice.before)
    end = start + len(choice.word)
    is_whole = sentence[start:end] == choice.word and not (
        sentence[end : end + 1].isalnum() and choice.word[-1].isalnum()
    )
    doubled = [one[0].lower() for one in _DOUBLED.finditer(sentence) if one[0].lower() not in choice.source.lower()]
    found = {
        "cut": not is_whole,
        "doubled": bool(doubled),
        "unlikely": not is_likely,
        "unseen word": any(token not in seen.words for token in _TOKEN.findall(choice.word.lower())),
        "unseen pair": seen.unseen_pairs(sentence, start, end),
    }
    return [name for name, is_broken in found.items() if is_broken]


def measure_words(
    model: Model, sentences: Sequence[str], seen: Seen, show: bool = False, **options: Any
) -> dict[str, Any]:
    """The faults of all offered words, in percent of them."""
    best = dict(zip(sentences, model.translate(list(sentences)), strict=True))
    offered = [one for sentence in sentences for one in choices(model, sentence, **options)]
    sources = [one.source for one in offered]
    texts = model.translate(sources, prefix=[f"{one.before}{one.word} " for one in offered]) if offered else []
    scores = dict(zip(best, log_probs(model, list(best), list(best.values())), strict=True))
    ratios = [
        score - scores[source] for score, source in zip(log_probs(model, sources, list(texts)), sources, strict=True)
    ]
    counts: Counter[str] = Counter()
    for one, text, ratio in zip(offered, texts, ratios, strict=True):
        found = faults(one, text, ratio >= math.log(UNLIKELY), seen)
        counts.update([*found, *(["any"] if found else [])])
        if show:
            print(f"  {one.before}[{one.word}] {text}  {', '.join(found)}")
    places = sum(len(_TOKEN.findall(text)) for text in best.values())
    return {"offered": len(offered), "per word": len(offered) / places, **shares(counts, len(offered))}


def measure_translations(model: Model, sentences: Sequence[str], seen: Seen, least: float | None) -> dict[str, Any]:
    """The faults of the translations beside the best, in percent of them."""
    from regard.translation.alternatives import likely_translations

    counts: Counter[str] = Counter()
    offered = 0
    for result in model.nbest(sentences, _NBEST, words=True):
        kept = likely_translations(result.translations, least)
        scores = log_probs(model, [result.source] * len(kept), [one.text for one in kept])
        for one, score in zip(kept[1:], scores[1:], strict=True):
            is_likely = score - scores[0] >= math.log(UNLIKELY)
            found = faults(Choice(result.source, "", one.text), one.text, is_likely, seen)
            counts.update([*found, *(["any"] if found else [])])
            offered += 1
    return {"offered": offered, "per word": offered / len(sentences), **shares(counts, offered)}


def measure_best(model: Model, sentences: Sequence[str], seen: Seen) -> dict[str, Any]:
    """The same of every word of the model's own translations, as the level to compare with."""
    counts: Counter[str] = Counter()
    places = 0
    for result in model.nbest(sentences, 1, words=True):
        best, position = result.translations[0], 0
        for word in best.words:
            start = best.text.index(word.text, position)
            position = start + len(word.text)
            found = faults(Choice(result.source, best.text[:start], word.text), best.text, True, seen)
            counts.update([*found, *(["any"] if found else [])])
            places += 1
    return {"offered": places, "per word": 1.0, **shares(counts, places)}


def shares(counts: Counter[str], total: int) -> dict[str, float]:
    names = ("cut", "doubled", "unlikely", "unseen word", "unseen pair", "any")
    return {f"{name} %": 100 * counts[name] / max(1, total) for name in names}


def texts_of(language: str, data: Path | None) -> list[Path]:
    """What people wrote in this language."""
    found = [ROOT / f"data/tatoeba/{part}.{language}.xz" for part in ("train", "dev", "test")]
    if data is not None:
        found += [data / f"europarl/train-00.{language}.xz", data / f"mono/common-voice.{language}.xz"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_BENCH_DATA"), help="more text to look in")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--least", type=float, help="as of Model.alternatives")
    parser.add_argument("--show", action="store_true", help="print every word that is offered, and its faults")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    data = Path(arguments.data) if arguments.data else None
    options = {} if arguments.least is None else {"least": arguments.least}
    pairs = [line.split("\t") for line in SENTENCES.read_text("utf-8").splitlines()][: arguments.sentences]
    rows = []
    for name, side in (("en-de", 0), ("de-en", 1)):
        model, sentences = regard.load(name), [pair[side] for pair in pairs]
        seen = Seen.read(texts_of(model.target, data))
        kinds = {
            "words of the best": measure_best(model, sentences, seen),
            "offered words": measure_words(model, sentences, seen, arguments.show, **options),
            "offered translations": measure_translations(model, sentences, seen, arguments.least),
        }
        rows += [{"model": name, "what": what, **row} for what, row in kinds.items()]
    facts = {**machine(torch.device("cpu"), ["ctranslate2"]), "sentences": len(pairs)}
    report("alternatives", rows, facts, arguments.out)


if __name__ == "__main__":
    main()
