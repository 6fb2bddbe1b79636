"""Notes about labelled data before a run: labels that occur once, unbalanced classes, equal texts, tags that contradict each
other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from regard.data.corpus import RecordSource, Texts, shorten
from regard.data.labelled import BETWEEN, NONE, NUMBER, WordsCorpus
from regard.data.split import sentence_key
from regard.progress import counted
from regard.recipe import Recipe
from regard.understanding.answers import has_spans

UNBALANCED = 20  # times as many texts of the most frequent label as of the rarest
_SHOWN = 4


def doubts_of_texts(
    recipe: Recipe, corpora: Sequence[RecordSource], others: Mapping[str, Sequence[Texts]]
) -> list[str]:
    """`others` are the records of data.valid and data.test, where they are files."""
    labels = recipe.model.labels
    counts, lines = Counter[str](), dict[str, tuple[str, int, str]]()
    equal = contradicting = 0
    example = ""
    for corpus in corpora:
        for record in corpus.records():
            text, label = record.texts
            if not (text.strip() and label.strip()):
                continue
            counts.update([] if label == NONE or label.startswith(NUMBER) else label.split())
            key = sentence_key(text)
            if key not in lines:
                lines[key] = (corpus.name, record.number, label)
                continue
            equal += 1
            if lines[key][2] != label:
                contradicting += 1
                where = f"{corpus.name}, lines {lines[key][1]:,} and {record.number:,}: {shorten(text, 40)!r}"
                example = example or where
    named = {label: counts[str(number)] for number, label in enumerate(labels)} if counts else {}
    notes = [*_once(named), *_unbalanced(named, bool(recipe.train.class_weights))]
    if equal:
        also = f"; {contradicting:,} of them with another label, first {example}" if contradicting else ""
        notes.append(
            f"{counted(equal, 'text')} {'is a duplicate' if equal == 1 else 'are duplicates'} (ignoring case and punctuation){also}"
        )
    return [*notes, *_shared(lines, others)]


def _once(counts: Mapping[str, int]) -> list[str]:
    once = [label for label, count in counts.items() if count == 1]
    if not once:
        return []
    shown = ", ".join(shorten(label, 30) for label in once[:_SHOWN]) + (", ..." if len(once) > _SHOWN else "")
    verb = "occurs" if len(once) == 1 else "occur"
    return [f"{counted(len(once), 'label')} {verb} only once, too rarely to learn or to measure: {shown}"]


def _unbalanced(counts: Mapping[str, int], has_weights: bool) -> list[str]:
    there = {label: count for label, count in counts.items() if count}
    if not there or has_weights:
        return []
    most, least = max(there, key=lambda label: there[label]), min(there, key=lambda label: there[label])
    if there[most] < UNBALANCED * there[least]:
        return []
    return [
        f"the labels are unbalanced: {shorten(most, 30)} {there[most]:,} times, {shorten(least, 30)} {there[least]:,} times; "
        f"--set train.class_weights=balanced gives all labels the same weight"
    ]


def _shared(known: Iterable[str], others: Mapping[str, Sequence[Texts]]) -> list[str]:
    known = set(known)
    notes = []
    for name, records in others.items():
        shared = sum(sentence_key(texts[0]) in known for texts in records)
        if shared:
            notes.append(
                f"{name}: {shared:,} of {counted(len(records), 'record')} also in data.train, so the score is too high"
            )
    return notes


def doubts_of_words(recipe: Recipe, corpora: Sequence[WordsCorpus], others: Mapping[str, Sequence[Texts]]) -> list[str]:
    labels = recipe.model.labels
    counts, keys, wrong, first = Counter[str](), set[str](), 0, ""
    is_spans = has_spans(labels)
    equal = 0
    for corpus in corpora:
        for path, lines, words, tags in corpus.sentences():
            counts.update(tags)
            key = sentence_key(BETWEEN.join(words))
            equal += key in keys
            keys.add(key)
            for place, tag in enumerate(tags) if is_spans else ():
                before = tags[place - 1] if place else "O"
                if tag.startswith("I-") and before[2:] != tag[2:]:
                    wrong += 1
                    first = first or f"{path}, line {lines[place]}: {tag} after {before}"
    notes = _once({label: counts[label] for label in labels})
    if wrong:
        notes.append(
            f"{counted(wrong, 'I- tag')} continue{'s' if wrong == 1 else ''} no span: {first}; read as the beginning of one"
        )
    if equal:
        notes.append(f"{counted(equal, 'sentence')} {'is a duplicate' if equal == 1 else 'are duplicates'}")
    return [*notes, *_shared(keys, others)]
