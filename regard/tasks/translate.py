"""Translation: pairs of sentences, the loss of the target tokens, BLEU and chrF of greedy translations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.arrays import IntArray
from regard.data.bpe_dropout import BpeDropout
from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus, RecordSource, Texts, resolve, resolve_all
from regard.data.feed import Packing
from regard.data.pair_packing import PairPacking, make_sampler
from regard.data.pair_slots import PairSlotBatch, PairSlots, fit_slots
from regard.data.pairs import PairBatch, gather, make_batch
from regard.data.sampler import Sampler
from regard.data.split import HeldOut
from regard.data.split import hold_out as choose_held_out
from regard.data.store import Store, store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.evaluate import Scores, score
from regard.files import write_atomic
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions, forbidden_ids
from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.progress import progress
from regard.recipe import Recipe
from regard.tasks.alignment import measure_alignment_heads
from regard.tasks.counting import PIECES_PER_WORD, count_words
from regard.tasks.defaults import about_store as about_store
from regard.tasks.defaults import anchored_loss as anchored_loss
from regard.tasks.defaults import baseline as baseline
from regard.tasks.defaults import begin as begin
from regard.tasks.defaults import complete as complete
from regard.tasks.defaults import examine as examine
from regard.tasks.defaults import fit_head as fit_head
from regard.tasks.measuring import BATCH_TOKENS, perplexity, sum_nll
from regard.tasks.task import Say
from regard.tasks.translation_plan import plan as plan
from regard.tasks.translation_verdict import outlook as outlook
from regard.tasks.translation_verdict import too_little as too_little
from regard.tasks.translation_verdict import verdict as verdict
from regard.translation.languages import is_in_other, language_name
from regard.translation.protect import encode_records as encode_records
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator

NOUN = "pair"
COLUMNS = Corpus.columns
HELD_OUT = "{name}.{{source,target}}"
SENTENCE = 20  # tokens of the sentences that the speed is measured by
LANGUAGE_LINES = 100  # of a corpus, to tell whether its languages are swapped
SAMPLES = 3
MAX_EXTRA = 20  # an untrained model does not know when to stop


# --- the data ---


def describe(recipe: Recipe) -> str:
    return ", ".join(f"{source} → {target}" for source, target in recipe.data.directions)


def find_corpora(spec: str, recipe: Recipe, weight: float) -> list[RecordSource]:
    data = recipe.data
    found = resolve_all(spec, Path(data.root), data.source, data.target, weight)
    return [_with_languages(corpus, recipe) for corpus in found]


def find_corpus(spec: str, recipe: Recipe) -> Corpus:
    found = resolve(spec, Path(recipe.data.root), recipe.data.source, recipe.data.target)
    return _with_languages(found, recipe)


def _with_languages(corpus: Corpus, recipe: Recipe) -> Corpus:
    """Each record has its languages where sources are tagged."""
    return replace(corpus, languages=(recipe.data.source, recipe.data.target)) if recipe.has_tags else corpus


def direction_of(record: Texts, recipe: Recipe) -> Texts:
    """The languages of a record."""
    return record[2:] or (recipe.data.source, recipe.data.target)


def read(corpus: RecordSource, note: Say = lambda text: None) -> Iterator[Texts]:
    """The pairs, without white space around their sentences."""
    return (tuple(text.strip() for text in record.texts) for record in corpus.records(note))


def hold_out(
    corpora: Sequence[RecordSource],
    num_valid: int | float,
    num_test: int | float,
    seed: int,
    note: Say = lambda text: None,
) -> tuple[HeldOut, list[RecordSource]]:
    by_direction: dict[Texts, list[RecordSource]] = {}
    for corpus in corpora:
        by_direction.setdefault(getattr(corpus, "languages", ()), []).append(corpus)
    valid: list[Texts] = []
    test: list[Texts] = []
    for number, (languages, some) in enumerate(by_direction.items()):
        pairs = (texts[:2] for corpus in some for texts in read(corpus))
        for_valid, for_test = (_share(int(count), number, len(by_direction)) for count in (num_valid, num_test))
        chosen = choose_held_out(pairs, for_valid, for_test, seed)
        valid += [(*pair, *languages) for pair in chosen.valid]
        test += [(*pair, *languages) for pair in chosen.test]
    return HeldOut(valid, test, compared=2, crosswise=len(by_direction) > 1), list(corpora)


def _share(count: int, number: int, parts: int) -> int:
    """What falls to one of several parts.

    >>> [_share(10, number, 3) for number in range(3)], _share(10, 0, 1)
    ([4, 3, 3], 10)
    """
    return (count + parts - 1 - number) // parts


def write_held_out(folder: Path, name: str, records: Sequence[Texts], recipe: Recipe) -> None:
    """A file for each language; of several directions, for each side of each."""
    for direction, start in recipe.held_out_names(name).items():
        for side, language in enumerate(direction):
            lines = (f"{texts[side]}\n" for texts in records if direction_of(texts, recipe) == direction)
            write_atomic(folder / f"{start}.{language}", "".join(lines))


def vocabulary_lines(
    corpora: Sequence[RecordSource], held_out: HeldOut | None, done: Callable[[int], None]
) -> Iterator[str]:
    """The sentences of both sides."""
    for corpus in corpora:
        for record in corpus.records():
            if held_out is None or not held_out.is_held_out(*record.texts):
                yield from record.texts[:2]
            if record.number % 1000 == 0:
                done(1000)


def clean_options(recipe: Recipe) -> CleanOptions:
    return CleanOptions(recipe.data.max_length, recipe.data.max_ratio, recipe.data.deduplicate)


def doubts(recipe: Recipe, corpora: Sequence[RecordSource]) -> list[str]:
    """A note for each corpus with a side that is in the language of the other: the two may have been swapped."""
    notes = []
    for corpus in corpora:
        languages = getattr(corpus, "languages", ()) or (recipe.data.source, recipe.data.target)
        sample = [record.texts for record in islice(corpus.records(), LANGUAGE_LINES)]
        faults = [
            f"the {name} side looks like {language_name(languages[1 - side])}, not {language_name(languages[side])}"
            for side, name in enumerate(COLUMNS)
            if is_in_other([pair[side] for pair in sample], languages[side], languages[1 - side])
        ]
        if faults:
            notes.append(f"{corpus.name}: {' and '.join(faults)}; if the two are swapped, stop and exchange them")
    return notes


def count(corpus: RecordSource, recipe: Recipe, note: Say) -> tuple[int, int]:
    pairs, words = count_words(corpus, note)
    return pairs, int(words * PIECES_PER_WORD) + pairs


# --- batches, and the loss ---


def make_batches(recipe: Recipe, store: Store, tokenizer: Tokenizer, with_slots: bool) -> tuple[Sampler, Packing]:
    """Batches with sentences of all lengths."""
    train, longest = recipe.train, recipe.data.max_length
    dropout = None
    lengths: tuple[IntArray, IntArray] = store["source"].lengths, store["target"].lengths
    if train.bpe_dropout:
        dropout = BpeDropout(store, tokenizer, train.bpe_dropout, train.seed, longest)
        lengths = dropout.src_lengths, dropout.tgt_lengths
    slots, tokens = None, train.batch_tokens
    if with_slots:
        tokens = -(-train.batch_tokens // train.accumulate)
        slots = fit_slots(*lengths, store.corpora, tokens, longest + 1)
    sampler = make_sampler(*lengths, tokens, train.seed, store.corpora, slots)
    return sampler, PairPacking(store, tokenizer.bos_id, tokenizer.eos_id, slots, dropout, longest)


def loss(model: Transformer, batch: PairBatch | PairSlotBatch, token_loss: TokenLoss) -> Loss:
    """The loss of the target tokens."""
    return token_loss(
        model, lambda: model.hidden(batch.src, batch.src_layout, batch.tgt_in, batch.tgt_layout), batch.labels
    )


def typical_length(recipe: Recipe) -> int:
    return SENTENCE


def made_up_batch(config: ModelConfig, tokens: int, length: int, with_slots: bool) -> tuple[Any, PairSlots | None, int]:
    """Pairs of random ids, with `</s>` of this length on both sides."""
    lengths = np.full(tokens // length, length - 1)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=int(lengths.sum()))
    sentences, count = (ids, lengths, ids, lengths, 0, 0), len(lengths) * length
    if not with_slots:
        return make_batch(*sentences), None, count
    slots = fit_slots(lengths, lengths, None, tokens, length)
    return slots.pack(*sentences, count), slots, count


# --- measuring, and the finished model ---


def make_validator(
    recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool
) -> TranslationValidator:
    sentences = 0 if loss_only else min(recipe.train.validate_sentences, len(records))
    targets = {target for _, target in recipe.data.directions}
    language = recipe.data.target if len(targets) == 1 else None
    return TranslationValidator(records, tokenizer, language, recipe.data.max_length, sentences)


@dataclass
class TranslationValidator:
    """Loss on all pairs, and BLEU and chrF of greedy translations of some."""

    pairs: Sequence[Texts]
    tokenizer: Tokenizer
    target_language: str | None  # of BLEU; None: there are several
    max_length: int
    sentences: int  # number to translate

    def __post_init__(self) -> None:
        self._store = store_in_memory(self.pairs, self.tokenizer, encode_records)
        lengths = np.maximum(self._store["source"].lengths, self._store["target"].lengths)
        # A line of thousands of tokens could need more memory than training itself.
        measured = np.flatnonzero(lengths <= self.max_length)
        if not len(measured):
            raise UserError(
                f"data.valid must have pairs within data.max_length = {self.max_length:,} tokens, but all {len(lengths):,} are "
                f"longer; raise data.max_length, or use other pairs"
            )
        self._order = measured[np.argsort(lengths[measured], kind="stable")]
        self._ends = np.cumsum(lengths[self._order] + 1)

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with loss, perplexity, BLEU, chrF and sample translations."""
        value = self.loss(model, device, autocast)
        record: dict[str, Any] = {"loss": value, "perplexity": perplexity(value)}
        if not self.sentences:
            return record
        shown = in_turn(self.pairs)[: self.sentences]
        translations = self._translate(model, device, shown)
        scores = score(
            translations,
            [texts[1] for texts in shown],
            target_language=self.target_language,
            bootstrap=0,
            metrics=("bleu", "chrf"),
        )
        record.update(bleu=scores.bleu, chrf=scores.chrf)
        record["samples"] = [
            {"source": source, "reference": reference, "translation": translation}
            for number in self._sample_numbers(shown)
            for (source, reference, *_), translation in [(shown[number], translations[number])]
        ]
        return record

    def _sample_numbers(self, shown: Sequence[Texts]) -> list[int]:
        """Sample sentences of medium length, spread over the set."""
        count, lengths = len(shown), [len(texts[0]) for texts in shown]
        middle = sorted(range(count), key=lambda n: abs(lengths[n] - 60))[: max(SAMPLES, count // 4)]
        return sorted(middle)[:: max(1, len(middle) // SAMPLES)][:SAMPLES]

    def loss(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> float:
        """Negative log-likelihood per token, without label smoothing."""
        total, count = sum_nll(loss, model, self._batches(), device, autocast)
        return total / count

    def _batches(self) -> Iterator[PairBatch]:
        cuts = np.searchsorted(self._ends, np.arange(BATCH_TOKENS, int(self._ends[-1]), BATCH_TOKENS))
        for part in np.split(self._order, cuts):
            if len(part):
                yield make_batch(*gather(self._store, part), self.tokenizer.bos_id, self.tokenizer.eos_id)

    def _translate(self, model: Transformer, device: torch.device, records: Sequence[Texts]) -> list[str]:
        tokenizer = self.tokenizer
        engine = TorchEngine(
            model, tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden_ids(tokenizer), device=device
        )
        options = TranslationOptions(SearchOptions(beam=1, max_extra=MAX_EXTRA))

        def translate(languages: Texts, sources: list[str]) -> list[str]:
            own = replace(options, languages=(languages[0], languages[1])) if languages else options
            translator = Translator(tokenizer, engine, own, self.max_length)
            return [result.text for result in translator.translate(sources)]

        return by_direction(records, translate)


def score_test_set(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
    """Translate the test set with the written bundle and score it."""
    engine = TorchEngine.from_bundle(bundle, recipe.train.device)
    with progress("translating the test set", len(records)) as done:

        def translate(languages: Texts, sources: list[str]) -> list[str]:
            own = bundle.toward(languages[0], languages[1]) if languages else bundle
            translator = Translator(bundle.tokenizer, engine, TranslationOptions.of(own), bundle.max_length)
            return [result.text for result in translator.stream(sources, 4096, done)]

        translations = by_direction(records, translate)
    targets = {direction_of(texts, recipe)[1] for texts in records}
    return score(
        translations, [texts[1] for texts in records], target_language=targets.pop() if len(targets) == 1 else None
    )


def by_direction(records: Sequence[Texts], translate: Callable[[Texts, list[str]], list[str]]) -> list[str]:
    """Translations of the sources of records, those of a direction together."""
    found = [""] * len(records)
    for languages in dict.fromkeys(texts[2:] for texts in records):
        numbers = [number for number, texts in enumerate(records) if texts[2:] == languages]
        for number, text in zip(numbers, translate(languages, [records[n][0] for n in numbers]), strict=True):
            found[number] = text
    return found


def in_turn(records: Sequence[Texts]) -> list[Texts]:
    """Records of several directions in turn, so that the first ones are of all.

    >>> in_turn([("a", "b", "x", "y"), ("c", "d", "x", "y"), ("e", "f", "y", "x")])
    [('a', 'b', 'x', 'y'), ('e', 'f', 'y', 'x'), ('c', 'd', 'x', 'y')]
    """
    groups: dict[Texts, list[Texts]] = {}
    for texts in records:
        groups.setdefault(texts[2:], []).append(texts)
    return [texts for some in zip_longest(*groups.values()) for texts in some if texts is not None]


def measure_weights(
    recipe: Recipe,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    records: Sequence[Texts],
    device: torch.device,
) -> dict[str, Any]:
    """Which heads align words."""
    config = recipe.model.config(tokenizer.vocab_size)
    return {"alignment": measure_alignment_heads(config, weights, tokenizer, in_turn(records), device)}
