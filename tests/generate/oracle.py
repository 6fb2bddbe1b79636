"""The search in plain Python, one sentence at a time, slow and without tensors: what `regard/generate/search/` must find.

Everything is worked out from a hypothesis's tokens alone: what phrases it misses, what it repeats, what it has attended to. Nothing
is carried from step to step but the tokens and their log-probability.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from regard.generate.options import Constraints, SearchOptions
from regard.generate.search.phrases import Phrase

Tokens = tuple[int, ...]
OVERDUE = 20.0  # what it costs to go on only because of phrases
LogProbs = Callable[[Tokens], Sequence[float]]  # of every token, after these
Attended = Callable[[Tokens], Sequence[float]]  # the weight on each source token when these have been written


@dataclass(frozen=True)
class Found:
    tokens: Tokens  # without the end
    log_prob: float
    score: float
    ended: bool = True  # false: it stopped at its limit, without an end


@dataclass(frozen=True)
class Candidate:
    log_prob: float
    rank: float  # what it is chosen by
    tokens: Tokens  # with the newest, which may be the end


@dataclass
class Group:
    """A beam, or one group of it."""

    live: list[tuple[Tokens, float]]  # with log-probabilities
    begun: bool = False  # of a single hypothesis: whether it was just made to begin a phrase or to go on with one
    pool: list[Found] = field(default_factory=list)


@dataclass(frozen=True)
class Oracle:
    log_probs: LogProbs
    limit: int
    options: SearchOptions
    eos: int
    forbidden: Sequence[int] = ()
    constraint: Constraints = field(default_factory=Constraints)
    attended: Attended | None = None
    prompt: Tokens = ()  # what is continued; then nothing has to end at the limit

    # --- what may come next ---

    def allowed(self, tokens: Tokens, begun: bool = False) -> tuple[dict[int, float], bool]:
        """What may come, and whether it is made to. Where a hypothesis is alone, it goes on with a phrase that it was made to
        begin, ends the word after it, and begins a phrase that belongs where most of its attention goes."""
        allowed = self.permitted(tokens)
        is_alone = self.width == 1 or self.options.sample
        if not is_alone or not self.constraint.phrases or len(tokens) < len(self.constraint.prefix):
            return allowed, False
        if begun:
            if going_on := {t: value for t, value in allowed.items() if t in self.going_on(tokens)}:
                return going_on, True
            outside = -1  # follows nothing
            waiting = [
                one for one in self.constraint.phrases if appears(tokens, one) and not appears((*tokens, outside), one)
            ]
            ends = [phrase.followers for phrase in waiting if phrase.followers is not None]
            following = {t: v for t, v in allowed.items() if t == self.eos or all(t in some for some in ends)}
            if ends and set.intersection(*map(set, ends)) and following:
                return following, False
        if self.attended is None or not any(phrase.source for phrase in self.constraint.phrases):
            return allowed, False
        wants_to_end = self.missing(tokens) > 0 and self.log_probs(tokens)[self.eos] > max(
            value for token, value in allowed.items() if token != self.eos
        )
        is_late = self.is_overdue(tokens) or wants_to_end or self.missing(tokens) >= self.limit - len(tokens)
        due = {token: value for token, value in allowed.items() if token in self.begun_at(tokens)[0]}
        if is_late or not due or max(self.attended(tokens)) <= 0.5:
            return allowed, False
        return due, True

    def permitted(self, tokens: Tokens) -> dict[int, float]:
        raw = dict(enumerate(self.log_probs(tokens)))
        if len(tokens) < len(self.constraint.prefix):
            place = self.constraint.prefix[len(tokens)]
            if isinstance(place, int):
                return {place: raw[place]}
            may_end = missing_tokens(tokens, self.constraint.phrases) == 0
            return {token: raw[token] for token in place if token != self.eos or may_end}
        return self.by_rules(tokens, raw)

    def by_rules(self, tokens: Tokens, raw: dict[int, float]) -> dict[int, float]:
        left = self.limit - len(tokens)
        missing = missing_tokens(tokens, self.constraint.phrases)
        if left == 0:
            return {self.eos: 0.0 if self.prompt else raw[self.eos]}
        allowed = {}
        for token, value in raw.items():
            longer = (*tokens, token)
            if token == self.eos:
                # A single hypothesis may want to end too early: it is then told what comes instead.
                if missing == 0 or ((self.width == 1 or self.options.sample) and missing < left):
                    allowed[token] = value
            elif missing_tokens(longer, self.constraint.phrases) > left - 1:
                pass
            elif missing_tokens(longer, self.constraint.phrases) < missing or (
                token not in self.forbidden and not self.repeats(longer)
            ):
                allowed[token] = value
        return allowed

    def repeats(self, tokens: Tokens) -> bool:
        n, times = self.options.no_repeat, self.options.max_repeat
        tokens = (*self.prompt, *tokens)
        grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
        if n and grams.count(tokens[-n:]) > 1 and len(tokens) >= n:
            return True
        return bool(times) and any(
            len(tokens) >= size * (times + 1) and tokens[-size * (times + 1) :] == tokens[-size:] * (times + 1)
            for size in range(1, 9)
        )

    # --- the search ---

    @property
    def width(self) -> int:
        return self.options.beam // self.options.groups

    def search(self) -> list[Found]:
        if self.options.sample:
            raise ValueError("samples need chances: call `sample`")
        groups = [Group([((), 0.0)]) for _ in range(self.options.groups)]
        while any(group.live for group in groups):
            taken: Counter[int] = Counter()
            for group in groups:
                candidates = self.in_order(group, taken)
                group.pool += [self.found(one) for one in candidates[: self.width] if one.tokens[-1] == self.eos]
                group.pool = sorted(group.pool, key=lambda one: -one.score)[: self.width]
                going_on = [one for one in candidates if one.tokens[-1] != self.eos][: self.width]
                taken.update(one.tokens[-1] for one in going_on)
                group.live = [(one.tokens, one.log_prob) for one in going_on]
            for group in groups:
                if self.is_done(group):
                    group.live = []
        return self.results(groups)

    def in_order(self, group: Group, taken: Counter[int]) -> list[Candidate]:
        """The candidates in the order in which they get a place."""
        everything = []
        meant = False
        for tokens, log_prob in group.live:
            allowed, meant = self.allowed(tokens, group.begun)
            for token, value in allowed.items():
                total = log_prob + value
                lost = self.options.diversity * taken[token] + OVERDUE * self.is_overdue((*tokens, token))
                everything.append(Candidate(total, total - lost, (*tokens, token)))
        everything.sort(key=lambda one: -one.rank)
        if not self.constraint.phrases:
            return everything[: 2 * self.width]
        nearer = [one for one in everything if self.missing(one.tokens) < self.missing(one.tokens[:-1])]
        in_place = [one for one in nearer if self.belongs(one.tokens)]
        if self.width == 1:
            best = everything[0] if everything else None
            if best is None:
                return []
            too_early = best.tokens[-1] == self.eos and self.missing(best.tokens[:-1]) > 0
            group.begun = meant or too_early
            return [nearer[0] if too_early else best]
        others = [one for one in everything if one not in in_place]
        looked_at = in_place[: 2 * self.width]
        for tokens, _ in group.live:  # of each the best
            looked_at += [one for one in others if one.tokens[:-1] == tokens][: 2 * self.width]
        sorts: dict[int, list[Candidate]] = {}
        for one in sorted(looked_at, key=lambda one: -one.rank):
            sorts.setdefault(self.missing(one.tokens), []).append(one)
        turns = max(map(len, sorts.values()), default=0)
        return [
            sorts[missing][turn] for turn in range(turns) for missing in sorted(sorts) if turn < len(sorts[missing])
        ]

    def belongs(self, tokens: Tokens) -> bool:
        """Whether the newest token does not begin a phrase in a wrong place, or it is too late for the right one."""
        before, token = tokens[:-1], tokens[-1]
        is_late = self.is_overdue((*before, 0)) or self.missing(before) >= self.limit - len(before)
        if self.attended is None or is_late or len(before) < len(self.constraint.prefix):
            return True
        here, free, elsewhere = self.begun_at(before)
        return token in here | free or token not in elsewhere

    def begun_at(self, tokens: Tokens) -> tuple[set[int], set[int], set[int]]:
        """Tokens that begin a phrase: whose place is here; that has no place, or go on with one; that belongs elsewhere."""
        assert self.attended is not None
        weights = self.attended(tokens)
        attended = max(range(len(weights)), key=weights.__getitem__)
        here: set[int] = set()
        free: set[int] = self.going_on(tokens)
        elsewhere: set[int] = set()
        for phrase in self.constraint.phrases:
            if not appears(tokens, phrase):
                begin = free if not phrase.source else here if attended in phrase.source else elsewhere
                begin.update(way[0] for way in phrase.variants)
        return here, free, elsewhere

    def going_on(self, tokens: Tokens) -> set[int]:
        """Tokens that go on with a phrase: with the longest beginning of each way that stands at the end."""
        found = set()
        for phrase in self.constraint.phrases:
            for way in phrase.variants if not appears(tokens, phrase) else ():
                lengths = [n for n in range(1, len(way)) if tokens[-n:] == way[:n]]
                if lengths:
                    found.add(way[max(lengths)])
        return found

    def missing(self, tokens: Tokens) -> int:
        """An end changes nothing."""
        return missing_tokens(tokens[:-1] if tokens[-1:] == (self.eos,) else tokens, self.constraint.phrases)

    def found(self, one: Candidate) -> Found:
        tokens = one.tokens[:-1]
        ended = not self.prompt or len(tokens) < self.limit
        score = one.log_prob / ((5 + len(tokens) + ended) / 6) ** self.options.alpha
        return Found(tokens, one.log_prob, score + self.coverage(tokens) - OVERDUE * self.is_overdue(tokens), ended)

    def is_overdue(self, tokens: Tokens) -> bool:
        """Whether it went on after the prefix where, but for phrases, the end was likelier than anything allowed."""
        for n in range(len(self.constraint.prefix), len(tokens)):
            before = tokens[:n]
            others = [value for token, value in self.permitted(before).items() if token != self.eos]
            if self.missing(before) > 0 and self.log_probs(before)[self.eos] > max(others):
                return True
        return False

    def coverage(self, tokens: Tokens) -> float:
        if not self.options.coverage or self.attended is None:
            return 0.0
        rows = [self.attended(tokens[:n]) for n in range(len(tokens) + 1)]
        columns = [sum(column) for column in zip(*rows, strict=True)]
        return self.options.coverage * sum(math.log(min(max(total, 1e-6), 1.0)) for total in columns)

    def is_done(self, group: Group) -> bool:
        if self.width == 1:
            return bool(group.pool)
        if not group.live:
            return True
        wanted = min(self.options.nbest, self.width)
        bound = max(log_prob for _, log_prob in group.live) / ((5 + self.limit + 1) / 6) ** self.options.alpha
        return len(group.pool) >= wanted and group.pool[wanted - 1].score >= bound

    def results(self, groups: Sequence[Group]) -> list[Found]:
        """From each group the best, then the second best, each once; the best first."""
        chosen: list[Found] = []
        for rank in range(self.width):
            there = [group.pool[rank] for group in groups if rank < len(group.pool)]
            for one in sorted(there, key=lambda one: -one.score):
                if one.tokens not in [other.tokens for other in chosen]:
                    chosen.append(one)
        return sorted(chosen[: self.options.nbest], key=lambda one: -one.score)

    # --- samples ---

    def sample(self, chance: random.Random) -> list[Found]:
        rows: list[Tokens | None] = [()] * self.options.beam
        log_probs = [0.0] * self.options.beam
        begun = [False] * self.options.beam
        pool: list[Found] = []
        while any(row is not None for row in rows):
            for number, row in enumerate(rows):
                where = chance.random()  # a row that has ended draws on: the others' luck does not hang on it
                if row is None:
                    continue
                allowed, begun[number] = self.allowed(row, begun[number])
                token = draw(allowed, where, self.options)
                if token == self.eos and self.missing(row) > 0:
                    nearer = [t for t in allowed if t != self.eos and self.missing((*row, t)) < self.missing(row)]
                    token = max(nearer, key=lambda t: allowed[t])
                    begun[number] = True
                log_probs[number] += allowed[token]
                rows[number] = (*row, token)
                if token == self.eos:
                    pool.append(self.found(Candidate(log_probs[number], 0.0, (*row, token))))
                    rows[number] = None
        return sorted(pool, key=lambda one: -one.score)[: self.options.nbest]


def penalised(logits: Sequence[float], text: Tokens, penalty: float) -> list[float]:
    """Log-probabilities in which the tokens of the text so far are less likely."""
    values = [
        value if token not in text else value / penalty if value > 0 else value * penalty
        for token, value in enumerate(logits)
    ]
    total = math.log(sum(math.exp(value) for value in values))
    return [value - total for value in values]


def merged(log_probs: Sequence[float], eos: int, stops: Sequence[int], together: bool) -> list[float]:
    """With one end in place of several: as likely as the likeliest, or as all of them together."""
    ends = [log_probs[token] for token in (eos, *stops)]
    end = math.log(sum(map(math.exp, ends))) if together else max(ends)
    return [end if token == eos else -math.inf if token in stops else p for token, p in enumerate(log_probs)]


def draw(allowed: dict[int, float], where: float, options: SearchOptions) -> int:
    """Tokens side by side, the likeliest first, each as wide as its probability; `where`, from 0 to 1, is the place to look."""
    ordered = sorted(allowed, key=lambda token: -allowed[token])[: options.top_k or None]
    widths = {token: math.exp(allowed[token] / options.temperature) for token in ordered}
    total = sum(widths.values())
    kept: list[int] = []
    reached = 0.0
    for token in ordered:
        if reached >= options.top_p:
            break
        reached += widths[token] / total
        if widths[token] >= options.min_p * widths[ordered[0]]:
            kept.append(token)
    place = where * sum(widths[token] for token in kept)
    for token in kept:
        place -= widths[token]
        if place < 0:
            return token
    return kept[-1]


# --- phrases ---


def appears(tokens: Tokens, phrase: Phrase) -> bool:
    """Whether it stands somewhere, with the end of a word after it or nothing."""
    for way in phrase.variants:
        for begin in range(len(tokens) - len(way) + 1):
            after = tokens[begin + len(way) :]
            if tokens[begin : begin + len(way)] == way and (
                not after or phrase.followers is None or after[0] in phrase.followers
            ):
                return True
    return False


def missing_tokens(tokens: Tokens, phrases: Sequence[Phrase]) -> int:
    """How many tokens it takes at least until all appear: those of the phrases that are absent, or what is left of one that is
    under way, those of the others, and of those that its next token undoes."""
    absent = [phrase for phrase in phrases if not appears(tokens, phrase)]
    sums = [sum(shortest(phrase) for phrase in absent)]
    for phrase in phrases:
        for way in phrase.variants:
            for n in range(1, len(way)):
                if tokens[-n:] == way[:n]:
                    absent_then = [other for other in phrases if not appears((*tokens, way[n]), other)]
                    undone = [other for other in absent_then if other not in absent]
                    if phrase in absent or phrase in undone:
                        gone_on = shortest(phrase) - (len(way) - n)
                        sums.append(sum(map(shortest, absent + undone)) - gone_on)
    return min(sums)


def shortest(phrase: Phrase) -> int:
    return min(len(way) for way in phrase.variants)
