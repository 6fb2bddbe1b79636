"""What the recipe of each task may say, and what people call its parts: one table, without torch. What a task does is in
`regard/tasks/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl")  # of files that are text for a language model, also packed
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl")  # of tables with labels, also packed
WORDS_SUFFIXES = (".conll", ".conllu", ".iob", ".bio")  # of words with tags, also packed


@dataclass(frozen=True)
class Figure:
    """A number that validations measure, as people see it."""

    name: str
    short: str  # where there is little room
    form: str
    higher_is_better: bool = False

    def shown(self, value: float) -> str:
        """For example "BLEU 21.3"."""
        return f"{self.short} {value:{self.form}}"


# By their keys in the records of a run, in the order in which they are shown.
FIGURES = {
    "loss": Figure("loss", "loss", ".3f"),
    "perplexity": Figure("perplexity", "ppl", ",.2f"),
    "bits_per_byte": Figure("bits per byte", "bits/byte", ".3f"),
    "chrf": Figure("chrF", "chrF", ".1f", higher_is_better=True),
    "bleu": Figure("BLEU", "BLEU", ".1f", higher_is_better=True),
    "accuracy": Figure("accuracy", "accuracy", ".2f", higher_is_better=True),
    "f1": Figure("F1", "F1", ".2f", higher_is_better=True),
    "macro_f1": Figure("macro F1", "macro F1", ".2f", higher_is_better=True),
    "retrieval": Figure("retrieval accuracy", "retrieval", ".2f", higher_is_better=True),
    "spearman": Figure("Spearman", "Spearman", ".2f", higher_is_better=True),
    "pearson": Figure("Pearson", "Pearson", ".2f", higher_is_better=True),
}


@dataclass(frozen=True)
class SampleKind:
    """The three texts of a validation's sample, by name: what was given, what a person wrote, and what the model wrote."""

    names: tuple[str, str, str]
    is_compared: bool  # whether what the model wrote should be what the person wrote

    @property
    def heading(self) -> str:
        return f"{self.names[-1].capitalize()}s over time"


SAMPLE_KINDS = (
    SampleKind(("source", "reference", "translation"), is_compared=True),
    SampleKind(("prompt", "reference", "continuation"), is_compared=False),
)


def sample_kind(sample: Mapping[str, Any]) -> SampleKind:
    """What a sample is, by the text that the model wrote."""
    return next(kind for kind in SAMPLE_KINDS if kind.names[-1] in sample)


Fields = Mapping[str, frozenset[str]]  # by section


@dataclass(frozen=True)
class TaskSettings:
    """The recipe of a task."""

    title: str  # in messages
    noun: str  # what people call a record
    scored: str  # what a score counts, as the head of a column
    fields: Fields  # that it has and some other task lacks
    # What it sets where the file says nothing, by section; the dataclasses of a recipe have the other defaults.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_sides: bool = False  # a record has a source and a target, which the recipe labels
    marks: int = 0  # tokens that a sequence may have beyond data.max_length
    tokens: str = "tokens"  # those that batches and speed are counted in
    has_labels: bool = False  # a record has labels, and the model a head for them
    has_tables: bool = False  # records are rows of tables, with one text or two
    monitors: tuple[str, ...] = ("loss",)  # what train.monitor may be
    has_own_head: bool = False  # the head is its own: a run may start from the encoder of another task
    can_smooth: bool = True  # its loss has labels, which may be smoothed

    @property
    def required(self) -> str:
        """The fields of [data] that a recipe must set."""
        return "source, target, train and valid" if self.has_sides else "train and valid"


def _fields(**sections: str) -> Fields:
    return {section: frozenset(names.split()) for section, names in sections.items()}


def _labelled(head: str) -> Mapping[str, Mapping[str, Any]]:
    """What the tasks with labels set: an encoder with this kind of head, and a validation by its scores."""
    return {
        "data": {"max_length": 256},
        "model": {"decoder_layers": 0, "head": {"kind": head}},
        "train": {"label_smoothing": 0.0, "monitor": "score"},
    }


_LABEL_MONITORS = ("loss", "score", "accuracy", "f1", "macro_f1", "spearman", "pearson")
DEFAULT_TASK = "translate"
TASK_SETTINGS: dict[str, TaskSettings] = {
    DEFAULT_TASK: TaskSettings(
        title="translation",
        noun="pair",
        scored="Sentences",
        fields=_fields(
            data="source target max_ratio deduplicate",
            tokenizer="protect tag_targets",
            train="bpe_dropout validate_sentences monitor",
            decode="beam alpha max_extra guard",
        ),
        monitors=("loss", "bleu"),
        has_sides=True,
        marks=1,  # the end mark
        tokens="target tokens",
    ),
    "generate": TaskSettings(
        title="the task generate",
        noun="document",
        scored="Documents",
        fields=_fields(data="documents across_documents"),
        defaults={"data": {"max_length": 1024}, "model": {"encoder_layers": 0}, "train": {"label_smoothing": 0.0}},
    ),
    "fill": TaskSettings(
        title="the task fill",
        noun="document",
        scored="Documents",
        fields=_fields(data="documents", train="mask whole_words"),
        defaults={"data": {"max_length": 512}, "model": {"decoder_layers": 0}, "train": {"label_smoothing": 0.0}},
    ),
    "classify": TaskSettings(
        title="the task classify",
        noun="text",
        scored="Texts",
        fields=_fields(data="text label header separator", train="monitor class_weights fit_head", decode="threshold"),
        defaults=_labelled("classes"),
        has_labels=True,
        monitors=_LABEL_MONITORS,
        has_tables=True,
        has_own_head=True,
    ),
    "tag": TaskSettings(
        title="the task tag",
        noun="sentence",
        scored="Sentences",
        fields=_fields(data="text label", train="monitor class_weights fit_head", decode="words"),
        defaults=_labelled("tags"),
        has_labels=True,
        monitors=_LABEL_MONITORS,
        has_own_head=True,
    ),
    "embed": TaskSettings(
        title="the task embed",
        noun="pair",
        scored="Pairs",
        fields=_fields(data="source target max_ratio deduplicate", train="monitor temperature anchor"),
        defaults={
            "data": {"max_length": 128},
            "model": {"decoder_layers": 0, "head": {"kind": "vector", "pooling": "mean", "normalize": True}},
            "train": {"label_smoothing": 0.0, "monitor": "retrieval"},
        },
        monitors=("loss", "retrieval"),
        has_sides=True,
        has_own_head=True,
        can_smooth=False,
    ),
}


def foreign_fields(task: str, section: str) -> frozenset[str]:
    """The fields of a section that only other tasks have."""
    of_any = frozenset[str]().union(*(each.fields.get(section, frozenset()) for each in TASK_SETTINGS.values()))
    return of_any - TASK_SETTINGS[task].fields.get(section, frozenset())
