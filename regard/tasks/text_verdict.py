"""What to expect of a language model: before its run, whether text and time suffice; after it, whether it has learnt more than how
often each token occurs."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.data.corpus import Texts
from regard.data.documents import ChatCorpus, chat_answers
from regard.data.tokenizer import Tokenizer
from regard.progress import duration, epochs
from regard.tasks.counting import length_option
from regard.tasks.task import Outcome, Prospect

LEAST_TOKENS = 500_000  # read in a run: with fewer, samples of Tiny Shakespeare have no words yet
ENOUGH_TOKENS = 5_000_000
# Repeated text is worth less each time, and nothing after about 40 epochs (Muennighoff et al., 2023, figure 5), or later with
# dropout and weight decay. From this many on, a model learns the text by heart.
MANY_EPOCHS = 100
FEW_EPOCHS = 10


def outlook(prospect: Prospect) -> list[str]:
    recipe, rate = prospect.recipe, prospect.rate
    if rate is None or prospect.epochs is None:
        return []
    if prospect.epochs >= MANY_EPOCHS:
        return [
            f"{epochs(prospect.epochs)} of this text will teach it by heart and little else: get more text, or stop sooner "
            f"(--epochs {FEW_EPOCHS})"
        ]
    if recipe.train.init:
        return []
    read = prospect.epochs * prospect.tokens
    if read >= LEAST_TOKENS:
        return []
    is_much = MANY_EPOCHS * prospect.tokens >= ENOUGH_TOKENS
    remedy = f"give it {duration(ENOUGH_TOKENS / rate)}" if is_much else "get more text"
    return [
        f"{epochs(prospect.epochs)} of this text will not suffice to write words: {remedy}, or start from a trained model "
        f"({prospect.init_option})"
    ]


def verdict(outcome: Outcome) -> str:
    """How to try the model or, if it has learnt nothing, what to do instead."""
    loss, bound = outcome.best.get("loss"), unigram_entropy(outcome.tokenizer, outcome.valid)
    is_new = not outcome.recipe.train.init  # another model could write before the run
    if is_new and loss is not None and bound is not None and loss >= bound:
        return (
            f"verdict validation loss {loss:.3f}: no better than guessing by how often each token occurs ({bound:.3f}); "
            f"{_remedy(outcome)}"
        )
    chat = " --chat" if set(ChatCorpus.columns) == set(outcome.store.columns) else ""
    return f'try it  regard generate{chat} -m {shlex.quote(str(outcome.run))} "..."'


def _remedy(outcome: Outcome) -> str:
    """What may help: more time, or another learning rate."""
    steps = [record for record in outcome.records if record["kind"] == "train" and record.get("tokens_per_second")]
    passed = float(steps[-1].get("epoch") or 0.0) if steps else 0.0
    tokens = sum(len(column.ids) for column in outcome.store.columns.values())
    if MANY_EPOCHS * tokens < ENOUGH_TOKENS:
        return "get more text, or start from a trained model (train.init)"
    if steps and passed * tokens < LEAST_TOKENS:
        rate = statistics.median(float(record["tokens_per_second"]) for record in steps)
        longer = length_option(outcome.recipe, ENOUGH_TOKENS / max(1, tokens), tokens, rate)
        needed = duration(ENOUGH_TOKENS / rate)
        return f"{epochs(passed)} did not suffice: give it {needed} in all ({outcome.resume_command} {longer})"
    return f"{outcome.report} shows its curves: train.lr may not fit, or the held-out text may be of another kind"


def unigram_entropy(tokenizer: Tokenizer, documents: Sequence[Texts]) -> float | None:
    """Nats per token of a model that knows only how often each token occurs in these documents, end tokens included; None without
    documents."""
    counts = Counter[int]()
    for texts in documents:
        counts.update(tokenizer.encode(chat_answers(texts)))
        counts[tokenizer.eos_id] += 1
    if not counts:
        return None
    shares = np.array(list(counts.values())) / counts.total()
    return float(-(shares * np.log(shares)).sum())
