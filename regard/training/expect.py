"""What to expect of a run: before it, whether its text and its time can suffice; after it, what its score means.

The rules of thumb come from small models on two CPU cores (docs/results.md): Tatoeba's sentences, of ten tokens, reach 11 BLEU
after 48,000 pairs and 31 after 128,000; Multi30k's, of fifteen, 37 after 258,000. Longer sentences need more of them. What a score
means is Google's scale for readers of BLEU (cloud.google.com/translate/docs/advanced/automl-evaluate): below 10 almost useless,
from 10 to 19 hard to get the gist, from 20 the gist is clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.builtin import builtin_models
from regard.bundle import load_bundle
from regard.data.corpus import Texts
from regard.evaluate import score
from regard.generate.engines.select import make_engine
from regard.progress import counted
from regard.recipe import Recipe
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator

_LEAST_SHOWN, _ENOUGH_SHOWN = 50_000, 200_000  # pairs of ten tokens, every showing counted
_SHORT = 10  # tokens
USELESS, GIST = 10, 20  # BLEU
ENOUGH_TO_JUDGE = 20  # sentences: the BLEU of fewer says little
_SCORED_PAIRS = 100  # of the held-out text, with a built-in model


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
    if len(held_out) < ENOUGH_TO_JUDGE:
        return start
    return f"{start}, which already scores {builtin_score(name, held_out, recipe.train.device):.1f} BLEU on your held-out text"


def builtin_score(name: str, pairs: Sequence[Texts], device: str) -> float:
    """BLEU of a built-in model on a sample of the pairs."""
    bundle = load_bundle(builtin_models()[name])
    sample = pairs[:: max(1, len(pairs) // _SCORED_PAIRS)][:_SCORED_PAIRS]
    engine = make_engine(bundle, device=device)
    translator = Translator(bundle.tokenizer, engine, TranslationOptions.of(bundle), bundle.max_length)
    translations = [result.text for result in translator.translate([source for source, _ in sample])]
    references = [reference for _, reference in sample]
    return score(translations, references, target_language=bundle.target, bootstrap=0, metrics=("bleu",)).bleu


def epochs(number: float) -> str:
    """For example "1.2 epochs", "0.004 epochs"."""
    return f"{number:.1f} epochs" if number >= 0.1 else f"{number:.1g} epochs"


def duration(seconds: float) -> str:
    """For example "40 minutes", "2.5 hours", "3.1 days"."""
    minutes = seconds / 60
    if minutes < 90:
        return counted(max(1, round(minutes)), "minute")
    return f"{minutes / 60:.1f} hours" if minutes < 48 * 60 else f"{minutes / 60 / 24:.1f} days"
