"""What a task is: the functions that its module has. Training calls them, and knows nothing else about the text and its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.clean import CleanOptions
from regard.data.corpus import RecordSource, Texts
from regard.data.encoding_workers import EncodeRecords
from regard.data.feed import Packing
from regard.data.sampler import Sampler
from regard.data.slot_batch import SlotShape
from regard.data.split import HeldOut
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.evaluate import Scores
from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.recipe import Recipe
from regard.settings import HeadConfig

Say = Callable[[str], None]
LossFunction = Callable[[Transformer, Any, TokenLoss], Loss]  # model, batch, token loss


class Validator(Protocol):
    """Measures models on one set of records. Pass a copy of the model in training: measuring may switch its kernels."""

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with the loss, the perplexity and what else the task measures."""
        ...


@dataclass(frozen=True)
class Plan:
    """Settings for plain files, as nested values of a recipe: those that are possible, and a function that reads the text and
    decides."""

    possible: Sequence[dict[str, Any]]
    decide: Callable[[], Decision]


@dataclass(frozen=True)
class Decision:
    """Settings chosen for plain files, and what was found in them."""

    values: dict[str, Any]
    found: str  # for people, such as "corpus.en and corpus.de: 500 pairs, en → de"
    records: int
    tokens: int  # estimated, of an epoch


@dataclass(frozen=True)
class Prospect:
    """What is known of a run before it begins."""

    recipe: Recipe
    records: float  # of an epoch
    tokens: float  # of an epoch, those that its speed is counted in
    rate: float | None  # of those tokens per second; None: not measured
    epochs: float | None  # its length; None: not known without the rate
    held_out: Sequence[Texts]  # to score other models on; empty unless it is a dry run
    is_dry_run: bool
    init_option: str  # how to name a model to start from


@dataclass(frozen=True)
class Outcome:
    """What is known of a run at its end."""

    recipe: Recipe
    run: Path
    report: Path
    resume_command: str
    bundle: Bundle
    tokenizer: Tokenizer
    store: Store
    valid: Sequence[Texts]
    test: Sequence[Texts]
    records: Sequence[Mapping[str, Any]]  # the metrics
    best: Mapping[str, Any]  # the record of the best validation; empty if there is none
    baseline: Mapping[str, Any] = field(default_factory=dict)  # that of the task, as JSON; empty if there is none


@dataclass(frozen=True)
class Baseline:
    """Scores of a simple model on the same data, to compare with."""

    name: str
    valid: Scores
    test: Scores | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        test = None if self.test is None else self.test.to_json()
        return {"name": self.name, "valid": self.valid.to_json(), "test": test, "seconds": round(self.seconds, 1)}


class Task(Protocol):
    """The module of a task."""

    # --- a recipe for plain files, and what to expect of a run ---

    def plan(self, inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
        """Settings for these files and this kind of machine; `given` are those that the user has chosen."""
        ...

    def count(self, corpus: RecordSource, recipe: Recipe, note: Say) -> tuple[int, int]:
        """The records of a corpus, and about how many tokens an epoch has of them; reading checks the files."""
        ...

    def outlook(self, prospect: Prospect) -> list[str]:
        """Warnings before a run, if text or time cannot suffice."""
        ...

    def verdict(self, outcome: Outcome) -> str:
        """What the scores of a run mean, and how to try its model."""
        ...

    def complete(self, recipe: Recipe, head: HeadConfig | None = None) -> Recipe:
        """The recipe with what only its data can say, such as the labels of the head. `head` is that of the model in `train.init`,
        if it has one that the task could go on with. A complete recipe is returned as it is."""
        ...

    # --- the data: which columns a record has, and where they come from ---

    NOUN: str  # what people call a record
    COLUMNS: tuple[str, ...]  # of the store
    HELD_OUT: str  # how a recipe would name the files of `write_held_out`; {name} is "valid" or "test"

    @property
    def encode_records(self) -> EncodeRecords:
        """Texts to token ids; of a module without torch, since worker processes import it."""
        ...

    def describe(self, recipe: Recipe) -> str:
        """What a run is about, such as "en → de"."""
        ...

    def find_corpora(self, spec: str, recipe: Recipe, weight: float) -> list[RecordSource]:
        """The corpora that an entry of `data.train` names."""
        ...

    def find_corpus(self, spec: str, recipe: Recipe) -> RecordSource:
        """The one corpus that `data.valid` or `data.test` names."""
        ...

    def read(self, corpus: RecordSource, note: Say = ...) -> Iterator[Texts]:
        """The records of a validation or test corpus; `note` is told what the user should know about them."""
        ...

    def hold_out(
        self,
        corpora: Sequence[RecordSource],
        num_valid: int | float,
        num_test: int | float,
        seed: int,
        note: Say = ...,
    ) -> tuple[HeldOut, list[RecordSource]]:
        """Validation and test records from the training text, so many or, as a float, a share of it; and the corpora that are left
        to train on. `note` is told what the user should know about them."""
        ...

    def write_held_out(self, folder: Path, name: str, records: Sequence[Texts], recipe: Recipe) -> None:
        """Write held-out records as text files whose names begin with `name`."""
        ...

    def vocabulary_lines(
        self, corpora: Sequence[RecordSource], held_out: HeldOut | None, done: Callable[[int], None]
    ) -> Iterator[str]:
        """The lines to learn the vocabulary from; `done` is told how many records were read."""
        ...

    def clean_options(self, recipe: Recipe) -> CleanOptions: ...

    def doubts(self, recipe: Recipe, corpora: Sequence[RecordSource]) -> list[str]:
        """Notes about text that looks wrong, before it is prepared."""
        ...

    def too_little(self, recipe: Recipe, num_records: float) -> str | None:
        """A warning if that text is too little to learn from."""
        ...

    def about_store(self, recipe: Recipe, store: Store, tokenizer: Tokenizer, config: ModelConfig) -> list[str]:
        """Notes about the encoded records, such as how many are cut."""
        ...

    def baseline(
        self,
        recipe: Recipe,
        corpora: Sequence[RecordSource],
        held_out: HeldOut | None,
        valid: Sequence[Texts],
        test: Sequence[Texts],
    ) -> Baseline | None:
        """A simple model of the same data, trained in seconds; None if the task has none."""
        ...

    # --- batches, and the loss ---

    def make_batches(
        self, recipe: Recipe, store: Store, tokenizer: Tokenizer, with_slots: bool
    ) -> tuple[Sampler, Packing]:
        """Which records make up each batch, and how they become one: of any shape, or of one fixed shape."""
        ...

    def begin(self, model: Transformer, store: Store) -> None:
        """Set what the data says of a new head, before the weights of `train.init` are loaded."""
        ...

    def fit_head(
        self, recipe: Recipe, model: Transformer, store: Store, tokenizer: Tokenizer, device: torch.device
    ) -> None:
        """Fit a new head on the encoder of `train.init`, where the recipe asks for it."""
        ...

    def loss(self, model: Transformer, batch: Any, token_loss: TokenLoss) -> Loss:
        """The loss of a batch, as sums and a count. A task that predicts tokens calls `token_loss`; another takes its smoothing,
        and is trained on the plain path, without R-Drop."""
        ...

    def anchored_loss(self, start: Transformer, side: int) -> LossFunction:
        """The loss with `train.anchor`: it compares this side of the records with what the model `start` makes of it."""
        ...

    def typical_length(self, recipe: Recipe) -> int:
        """The length of the sequences that the speed is measured by."""
        ...

    def made_up_batch(
        self, config: ModelConfig, tokens: int, length: int, with_slots: bool
    ) -> tuple[Any, SlotShape | None, int]:
        """A micro-batch of made-up text to measure the speed by, of sequences of this length; with slots it is packed, and comes
        with its shape; and its number of labels."""
        ...

    # --- measuring, and the finished model ---

    def make_validator(
        self, recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool
    ) -> Validator: ...

    def score_test_set(self, recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
        """Scores of the written bundle on the test set."""
        ...

    def examine(self, recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> dict[str, Any] | None:
        """What the report shows of the written bundle beside its scores, for JSON; None: nothing."""
        ...

    def measure_weights(
        self,
        recipe: Recipe,
        weights: dict[str, Tensor],
        tokenizer: Tokenizer,
        records: Sequence[Texts],
        device: torch.device,
    ) -> dict[str, Any]:
        """Further fields of the bundle that depend on its weights."""
        ...
