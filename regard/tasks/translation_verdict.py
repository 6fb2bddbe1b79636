"""What to expect of a translation run: before it, whether its text and its time can suffice; after it, what its score means.

The rules of thumb come from small models on two CPU cores (docs/results.md): Tatoeba's sentences, of ten tokens, reach 11 BLEU
after 48,000 pairs and 31 after 128,000; Multi30k's, of fifteen, 37 after 258,000. Longer sentences need more of them. What a score
means is Google's scale for readers of BLEU (cloud.google.com/translate/docs/advanced/automl-evaluate): below 10 almost useless,
from 10 to 19 hard to get the gist, from 20 the gist is clear.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from regard.builtin import builtin_models
from regard.bundle import load_bundle
from regard.data.corpus import Texts
from regard.data.store import Store
from regard.evaluate import score
from regard.generate.engines.select import make_engine
from regard.progress import counted, duration, epochs
from regard.recipe import Recipe
from regard.tasks.counting import length_option
from regard.tasks.task import Outcome, Prospect
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator

_LEAST_SHOWN, _ENOUGH_SHOWN = 50_000, 200_000  # pairs of ten tokens, every showing counted
_SHORT = 10  # tokens
USELESS, GIST = 10, 20  # BLEU
ENOUGH_TO_JUDGE = 20  # sentences: the BLEU of fewer says little
_SCORED_PAIRS = 100  # of the held-out text, with a built-in model
FEW_PAIRS = 10_000  # of training text: fewer do not teach a language
_USELESS_PERPLEXITY = 50.0  # where nothing was translated; Tatoeba's 11 BLEU go with 51


@dataclass(frozen=True)
class Amount:
    """The training text of a run: pairs and target tokens of an epoch, and the number of epochs."""

    pairs: float
    tokens: float
    epochs: float

    @property
    def least_epochs(self) -> float:
        """Fewer will not give a model that translates."""
        return _LEAST_SHOWN * self._difficulty / max(self.pairs, 1)

    @property
    def enough_epochs(self) -> float:
        """The number to recommend."""
        return _ENOUGH_SHOWN * self._difficulty / max(self.pairs, 1)

    @property
    def _difficulty(self) -> float:
        return max(1.0, self.tokens / max(self.pairs, 1) / _SHORT)


def too_little(recipe: Recipe, num_records: float) -> str | None:
    """Fine-tuning has no such bound."""
    if recipe.train.init or num_records >= FEW_PAIRS:
        return None
    pairs = counted(round(num_records), recipe.settings.noun)
    return f"{pairs} will not suffice to learn a language: get at least {FEW_PAIRS:,}, better many more"


def outlook(prospect: Prospect) -> list[str]:
    recipe, rate = prospect.recipe, prospect.rate
    warning = too_little(recipe, prospect.records)
    if warning and not prospect.is_dry_run:
        return []  # the run itself warns of too little text
    if not warning and rate is not None and prospect.epochs is not None:
        warning = too_short_warning(recipe, Amount(prospect.records, prospect.tokens, prospect.epochs), rate)
    return [warning + other_start(recipe, prospect.held_out, prospect.init_option)] if warning else []


def too_short_warning(recipe: Recipe, amount: Amount, rate: float) -> str | None:
    """A warning if the run is too short for its text, with a better length; `rate` is in target tokens per second."""
    if recipe.train.init or amount.epochs >= amount.least_epochs:
        return None
    return f"{epochs(amount.epochs)} will not suffice: give it {duration(amount.enough_epochs * amount.tokens / rate)}"


def other_start(recipe: Recipe, held_out: Sequence[Texts], setting: str = "train.init") -> str:
    """The remedy that needs no more text and time, for the end of a warning: a model to start from, with its score.
    `setting` is how to choose it: two files have the option, while a recipe has more to change, as docs/guide.md says."""
    name = f"{recipe.data.source}-{recipe.data.target}"
    if name not in builtin_models():
        return f", or start from a trained model ({setting})"
    start = f", or start from {name} ({setting}{' ' + name if setting.startswith('-') else ''})"
    fitting = [texts for texts in held_out if texts[2:] in ((), (recipe.data.source, recipe.data.target))]
    if len(fitting) < ENOUGH_TO_JUDGE:
        return start
    return f"{start}, which already scores {builtin_score(name, fitting, recipe.train.device):.1f} BLEU on your held-out text"


def builtin_score(name: str, pairs: Sequence[Texts], device: str) -> float:
    """BLEU of a built-in model on a sample of the pairs."""
    bundle = load_bundle(builtin_models()[name])
    sample = pairs[:: max(1, len(pairs) // _SCORED_PAIRS)][:_SCORED_PAIRS]
    engine = make_engine(bundle, device=device)
    translator = Translator(bundle.tokenizer, engine, TranslationOptions.of(bundle), bundle.max_length)
    translations = [result.text for result in translator.translate([texts[0] for texts in sample])]
    references = [texts[1] for texts in sample]
    return score(translations, references, target_language=bundle.target, bootstrap=0, metrics=("bleu",)).bleu


def verdict(outcome: Outcome) -> str:
    """How to try the model or, if it does not translate, what to do instead."""
    recipe, found = outcome.recipe, _score(outcome)
    if found is None and (warning := too_little(recipe, len(outcome.store))):
        return f"verdict {warning}{other_start(recipe, [])}"
    bleu, where = found or (math.inf, "")
    perplexity = float(outcome.best.get("perplexity") or 0.0)
    if bleu < USELESS or (found is None and perplexity >= _USELESS_PERPLEXITY):
        said = f"{where} BLEU {bleu:.1f}" if found else f"validation set: perplexity {perplexity:,.0f}"
        return f"verdict {said}: this model does not translate yet. {_remedy(outcome)}"
    tried = f'try it  regard translate -m {shlex.quote(str(outcome.run))} "..."'
    return f"expect  {where} BLEU {bleu:.1f}: the gist is often lost\n{tried}" if bleu < GIST else tried


def _score(outcome: Outcome) -> tuple[float, str] | None:
    """BLEU on the test set, or of the best validation, and which of them; None if there are too few sentences to tell."""
    best, test = outcome.best, outcome.bundle.facts.get("test")
    if test and test["sentences"] >= ENOUGH_TO_JUDGE:
        return float(test["metrics"]["bleu"]["score"]), "test set:"
    translated = min(len(outcome.valid), outcome.recipe.train.validate_sentences)
    if best.get("bleu") is not None and translated >= ENOUGH_TO_JUDGE:
        return float(best["bleu"]), "validation set:"
    return None


def _remedy(outcome: Outcome) -> str:
    """What may help: more text, more time, or another start."""
    recipe = outcome.recipe
    start = "" if recipe.train.init else other_start(recipe, outcome.test or outcome.valid)
    if warning := too_little(recipe, len(outcome.store)):
        return f"{warning}{start}"
    steps = [record for record in outcome.records if record["kind"] == "train" and record.get("tokens_per_second")]
    amount = amount_trained(outcome.store, float(steps[-1].get("epoch") or 0.0) if steps else 0.0)
    if not recipe.train.init and amount.epochs < amount.enough_epochs and steps:
        rate = statistics.median(float(record["tokens_per_second"]) for record in steps)
        needed = duration(amount.enough_epochs * amount.tokens / rate)
        more = f"{outcome.resume_command} {length_option(recipe, amount.enough_epochs, amount.tokens, rate)}"
        return f"{epochs(amount.epochs)} did not suffice: give it {needed} in all ({more}){start}"
    return f"{outcome.report} shows sample translations: the two sides may not match, or train.lr may not fit{start}"


def amount_trained(store: Store, number: float) -> Amount:
    """The text of a store, after so many epochs."""
    pairs = sum(corpus.weight * (corpus.stop - corpus.start) for corpus in store.corpora)
    tokens = sum(
        corpus.weight * float((store["target"].lengths[corpus.start : corpus.stop] + 1).sum())
        for corpus in store.corpora
    )
    return Amount(pairs, tokens, number)
