"""Scores of a model with labels on a table, or on words with tags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.accuracy import LabelScore
from regard.bundle import Bundle
from regard.data.columns import Columns, find_columns
from regard.data.corpus import RecordSource, check_corpus
from regard.data.labelled import TableCorpus, encode_labelled, encode_tagged, find_words, table_sample
from regard.device import pick_device
from regard.errors import UserError
from regard.evaluate import Scores
from regard.tasks.labelled import bundle_outputs, read, validator_of

SHOWN = 20  # labels on a terminal


def check_pairs(bundle: Bundle, path: Path, used: Columns) -> None:
    """Refuse a table of single texts for a model that was trained on pairs, and the other way round."""
    if bundle.takes_pairs in (None, len(used.text) > 1):
        return
    wanted = "two columns of text, since the model was trained on pairs of texts"
    if not bundle.takes_pairs:
        wanted = "one column of text, since the model was trained on single texts"
    raise UserError(
        f"{path}: must have {wanted}, but the text is in {' and '.join(used.text)}; name the columns with --text"
    )


def evaluate_table(
    bundle: Bundle, path: Path, text: Sequence[str], label: str, device: str = "auto"
) -> tuple[Scores, list[LabelScore], list[str]]:
    """The scores of a model on a file, those of each label, and notes for the user. Columns are found unless they are given."""
    head, said = bundle.config.head_settings, list[str]()
    corpus: RecordSource
    if bundle.task == "tag":
        corpus, encode = find_words(str(path), Path(), text, label, head.labels), encode_tagged
    elif bundle.task == "classify":
        encode = encode_labelled
        sample = table_sample(path)
        used = find_columns(path, sample, text, label, answer=head.answer)
        check_pairs(bundle, path, used)
        said.append(used.say(path, sample))
        corpus = TableCorpus(str(path), (path,), used, head.labels)
    else:
        raise UserError(
            f"{bundle.folder}: must be a model for the task classify or tag to be scored on a table, but is one for the task "
            f"{bundle.task}"
        )
    check_corpus(corpus)
    records = list(read(corpus, said.append))
    if not records:
        raise UserError(f"{path}: must have at least one {corpus.noun} with a label, but has none")
    length = min(bundle.max_length, bundle.config.longest or bundle.max_length)
    validator = validator_of(
        bundle.config, length, records, bundle.tokenizer, encode, corpus.columns, bundle.decode.threshold
    )
    outputs = bundle_outputs(bundle, validator, pick_device(device))
    return validator.scores(outputs), validator.by_label(outputs), said


def label_lines(by_label: Sequence[LabelScore]) -> list[str]:
    """A table of all labels, or of those with the lowest F1; empty without labels."""
    if not by_label:
        return []
    shown, notes = list(by_label), list[str]()
    if len(shown) > SHOWN:
        shown = sorted(shown, key=lambda one: one.f1)[:SHOWN]
        notes = [f"the {SHOWN} of {len(by_label):,} labels with the lowest F1 (--json has all)"]
    width = max(len("label"), *(len(one.label) for one in shown))
    table = [f"{'label':<{width}}  {'count':>7}  precision  recall      F1"]
    table += [
        f"{one.label:<{width}}  {one.given:>7,}  {one.precision:>9.2f}  {one.recall:>6.2f}  {one.f1:>6.2f}"
        for one in shown
    ]
    return [*notes, *table]
