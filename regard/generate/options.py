"""What an engine is asked and what it answers. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.search.phrases import Phrase

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.config import ModelConfig
    from regard.translation.glossary import Glossary


@dataclass(frozen=True)
class SearchOptions:
    """How to search. The defaults are the paper's."""

    beam: int = 4  # 1: greedy
    alpha: float = 0.6  # hypotheses are ranked by log-probability / ((5 + |Y|) / 6)^alpha, |Y| counting the end token
    max_extra: int = 50  # a translation has at most this many tokens more than its source
    nbest: int = 1
    coverage: float = 0.0  # what source tokens that were hardly attended to cost a finished translation
    no_repeat: int = 0  # no so many tokens in a row may come twice; 0: they may
    max_repeat: int = 0  # the same tokens may follow each other at most so many times; 0: without end
    groups: int = 1  # of the beam; each shuns the tokens of those before it
    diversity: float = 0.5  # how much it does
    sample: bool = False  # draw `beam` translations at random instead of looking for the best
    temperature: float = 1.0  # below 1 likely tokens are drawn more often than the model says, above 1 less often
    top_k: int = 0  # draw among so many tokens; 0: among all
    top_p: float = 1.0  # draw among the likeliest that have this probability together
    seed: int = 0
    # What is done around the engine, and not its business:
    # A line in another script, or whose translation is plainly nonsense, stays as it is; a number that is lost is kept, and is
    # written as the translation's language writes numbers.
    guard: bool = False
    languages: tuple[str, str] = ("", "")  # of source and translation: how each writes numbers
    words: bool = False  # translations come with their words and the log-probabilities of these
    alignment: bool = False  # likewise with which words of the source they come from; with words, too
    glossary: Glossary | None = None  # what terms of the source must be called
    keep: tuple[str, ...] = ()  # what is not translated
    mbr: str = ""  # bleu or chrf: take the translation that is most like all others of the beam

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("groups", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, but is {getattr(self, name)}")
        if not 1 <= self.nbest <= self.beam:
            raise UserError(
                f"nbest must be between 1 and the beam ({self.beam}), but is {self.nbest}; use a wider beam"
            )
        for name in ("alpha", "max_extra", "coverage", "no_repeat", "max_repeat", "diversity", "top_k"):
            if not getattr(self, name) >= 0:  # what is not a number is not, either
                raise UserError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.mbr not in ("", "bleu", "chrf"):
            raise UserError(f"mbr must be bleu or chrf, but is {self.mbr!r}")
        if self.mbr and self.beam < 3:
            what = "at least 3 samples" if self.sample else "the translations of a beam of at least 3"
            raise UserError(f"mbr chooses among {what}, but beam, which says how many there are, is {self.beam}")
        if not all(term.strip() for term in self.keep):
            raise UserError(f"keep must be words, none of them empty, but is {list(self.keep)!r}")
        object.__setattr__(self, "keep", tuple(term.strip() for term in self.keep))
        if self.beam % self.groups:
            raise UserError(f"the beam must be a multiple of groups ({self.groups}), but is {self.beam}")
        if not self.temperature > 0:
            raise UserError(
                f"temperature must be above 0, but is {self.temperature}; for the likeliest leave out sample"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, but is {self.top_p}")
        if self.groups == 1 and self.diversity != 0.5:
            raise UserError("diversity is for the groups of a beam; say how many groups, or leave it out")
        if self.sample and self.groups > 1:
            raise UserError("samples are drawn on their own, so groups of a beam mean nothing to them; leave out one")
        if not self.sample and (self.temperature, self.top_k, self.top_p, self.seed) != (1.0, 0, 1.0, 0):
            raise UserError(
                "temperature, top_k, top_p and seed are for drawing at random; add sample, or leave them out"
            )

    @classmethod
    def of(cls, bundle: Bundle) -> SearchOptions:
        """A model's own."""
        return cls(**asdict(bundle.decode), languages=(bundle.source, bundle.target))

    @property
    def of_engine(self) -> SearchOptions:
        """These options without what is done around the engine."""
        nbest = self.beam if self.mbr else self.nbest
        plain = replace(self, nbest=nbest, guard=False, languages=("", ""), words=False, alignment=False)
        return replace(plain, glossary=None, keep=(), mbr="")

    @property
    def beyond_beam(self) -> list[str]:
        """The names of what is asked for beside a beam, its n best and the length penalty: what not every engine can do."""
        asked = {
            "coverage": self.coverage > 0,
            "no_repeat": self.no_repeat > 0,
            "max_repeat": self.max_repeat > 0,
            "groups": self.groups > 1,
            "sample": self.sample,
        }
        return [name for name, is_asked in asked.items() if is_asked]

    def changed(
        self, beam: int | None = None, alpha: float | None = None, nbest: int | None = None, **more: Any
    ) -> SearchOptions:
        """These options with what is given. The beam, unless it is given, too, is at least as wide as `nbest` and a multiple of
        the groups; of samples there are as many as are wanted."""
        names = [field.name for field in fields(self) if field.name != "languages"]  # those are the model's
        if unknown := sorted(set(more) - set(names)):
            raise UserError(f"there is no search option {unknown[0]!r}; there are {', '.join(names)}")
        nbest = 1 if nbest is None else nbest
        if beam is None:
            groups = max(1, more.get("groups", self.groups))
            beam = nbest if more.get("sample") else max(self.beam, nbest)
            beam = -(-beam // groups) * groups
        return replace(self, beam=beam, alpha=self.alpha if alpha is None else alpha, nbest=nbest, **more)


# What a translation begins with: at each place a token, or several to choose from.
Prefix = Sequence[int | Sequence[int]]


@dataclass(frozen=True)
class Mixed:
    """A source with terms of a glossary already translated in it."""

    ids: Sequence[int]
    phrases: tuple[Phrase, ...]  # what must still appear, with its places in this source


@dataclass(frozen=True)
class Constraints:
    """What is wanted of one sentence's translation."""

    prefix: Prefix = ()
    phrases: tuple[Phrase, ...] = ()  # what must appear
    max_tokens: int | None = None  # tokens at most, if not what `max_extra` says; a longer prefix is taken as it is
    # The source with these phrases in it, instead of the terms that they translate; None: there is no such source.
    mixed: Callable[[Sequence[Phrase]], Mixed | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without the start and end tokens
    log_prob: float  # sum over its tokens and the end token
    score: (
        float  # what the search ranks by: log_prob under the length penalty, with what coverage and late phrases cost
    )


Matrix = list[list[float]]  # (queries, keys)
Done = Callable[[int], None]  # told how many more lines are finished
Finished = Callable[[Sequence[int]], None]  # told which sentences are finished, each of them once


class Engine(Protocol):
    """Turns source ids into hypotheses, best first, in the order of the input."""

    batch: int  # sentences computed together at most
    parallel: int  # calls of `translate` that may run beside each other, each in a thread of its own, and gain by it
    takes_phrases: bool  # whether it knows `Constraints.phrases` itself

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        finished: Finished | None = None,
        constraints: Sequence[Constraints] = (),  # one for each sentence, or none at all
    ) -> list[list[Hypothesis]]: ...

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        ...

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        """What the tokens of given translations attended to: (target tokens, source tokens), the ends left out, by the decoder
        layer that `aligning_layer` names, the mean of its heads."""
        ...

    def stream(
        self, src: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        """What one sentence's translation begins with for certain, as it grows, and in the end the translation."""
        ...

    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """The log-probability of every token of the vocabulary right after the beginning of a translation."""
        ...


def aligning_layer(config: ModelConfig) -> int:
    """The decoder layer, from 0, whose attention aligns best."""
    return max(0, config.decoder_layers - 2)


def forbidden_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that no translation may contain: those that stand for nothing in a text. An imported model has its own list."""
    if tokenizer.vocabulary is not None:
        return list(tokenizer.vocabulary.special.forbidden)
    spans = () if tokenizer.protects else tokenizer.span_ids
    ids = (tokenizer.unk_id, tokenizer.bos_id, tokenizer.pad_id, *spans, *tokenizer.tag_ids)
    return [i for i in ids if i >= 0]  # a model without padding says -1, which would mean the last piece
