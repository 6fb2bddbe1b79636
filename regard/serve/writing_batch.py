"""Continuous batching of texts that a language model writes for many clients.

    submit -> jobs that wait -> one thread that adds a token to every text at a time -> pieces of text, one by one

A job enters between two steps as soon as there is room for its texts, so nobody waits for somebody else's text to end, and leaves
when its texts are done or its client is gone. A text ends as soon as a stop string is complete. If there is no room, clients take
turns (`fairness.py`), and whoever fills the room leaves a share to others.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from regard.data.tokenizer import Tokenizer
from regard.errors import InputTooLarge, RegardError
from regard.generate.engines.decoder_jobs import DecoderJob, Row, TextDecoder, Token
from regard.serve.batching import Observe, QueueFull
from regard.serve.fairness import Client, FairShares
from regard.serve.limits import Limits
from regard.writing.options import WritingOptions
from regard.writing.stops import cut_at_stop, without_tail
from regard.writing.writer import GrowingText, Reason


@dataclass(frozen=True)
class Piece:
    """What was added to one text."""

    number: int  # of the text among those of its job
    text: str
    tokens: tuple[Token, ...]  # those whose text is complete with this piece
    reason: Reason | None = None  # why the text ends here; None: it goes on
    count: int = 0  # tokens that the model wrote for it so far
    end: Token | None = None  # the end token, if the model ended the text
    places: tuple[int, ...] = ()  # where the text of each of the tokens begins, in the whole text


OnPiece = Callable[[Piece | Exception], None]  # called from the thread; an exception ends the job


@dataclass(eq=False)
class _Text:
    """One text of a job as it grows."""

    row: Row
    growing: GrowingText
    shown: int = 0  # characters handed out
    handed: int = 0  # tokens handed out
    ends: list[int] = field(default_factory=list)  # where the text of each token ends
    reason: Reason | None = None


@dataclass(eq=False)
class WritingJob:
    """A prompt of a request."""

    decoding: DecoderJob
    options: WritingOptions
    on_piece: OnPiece
    client: Client
    is_streamed: bool
    texts: list[_Text]
    is_cancelled: bool = False


class WritingBatcher:
    """The thread around one language model."""

    def __init__(
        self,
        decoder: TextDecoder,
        tokenizer: Tokenizer,
        limits: Limits,
        shares: FairShares | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.decoder, self._tokenizer, self._limits = decoder, tokenizer, limits
        self._shares, self._observe = shares or FairShares(), observe
        self._tokens, self._rows = decoder.max_tokens, min(limits.rows, decoder.max_rows)  # of all texts together
        self._waiting: list[WritingJob] = []
        self._running: list[WritingJob] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._failure: BaseException | None = None
        self._speed = 50.0  # tokens a second; a first guess
        self._shares.threads += 1
        self._thread = threading.Thread(target=self._work, name="regard-writing", daemon=True)
        self._thread.start()

    @property
    def waiting_tokens(self) -> int:
        """The cost of the jobs that wait."""
        return sum(job.decoding.cost for job in self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether no bug has ended the thread."""
        return self._failure is None

    def seconds_left(self) -> int:
        """Seconds after which a client that was turned away may try again."""
        left = sum(len(job.texts) * job.decoding.limit for job in self._waiting)
        return min(60, max(1, math.ceil(left / self._speed)))

    def submit(
        self,
        prompt: Sequence[int],
        options: WritingOptions,
        on_piece: OnPiece,
        *,
        top: int = 0,
        is_streamed: bool = True,
        client: str = "",
    ) -> WritingJob:
        """Queue a prompt of a client; raises QueueFull if too much waits, InputError if it leaves no room for a text. Unless
        streamed, each text is one piece. `cancel` ends it."""
        decoding = DecoderJob(prompt, options.search, top)
        self.decoder.prepare(decoding)
        if decoding.cost > min(self._tokens, self._limits.tokens):
            most = min(self._tokens, self._limits.tokens)
            raise InputTooLarge(
                f"the prompt and its texts may have at most {most} tokens together, but could have {decoding.cost}; send less, or "
                "ask for fewer tokens or texts"
            )
        if len(decoding.rows) > self._rows:
            raise InputTooLarge(f"n may be at most {self._rows}")
        texts = [_Text(row, GrowingText(self._tokenizer, decoding.prompt)) for row in decoding.rows]
        with self._changed:
            if self._failure is not None:
                raise RuntimeError("the thread of the batcher has ended; restart the server") from self._failure
            if self._is_closed:
                raise RegardError("the server is being stopped")
            if self._waiting and self.waiting_tokens + decoding.cost > self._limits.queue_tokens:
                raise QueueFull(self.seconds_left())
            job = WritingJob(decoding, options, on_piece, self._shares.enter(client), is_streamed, texts)
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: WritingJob) -> None:
        """End a job for which nobody waits any more; one that is done already stays so."""
        with self._changed:
            job.is_cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self._shares.leave(job.client)

    def close(self, patience: float | None = None) -> None:
        """Finish all jobs, then stop. `patience`: seconds to wait for that; the thread is a daemon."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(patience)

    # --- the thread ---

    def _work(self) -> None:
        try:
            while (entering := self._take()) is not None:
                start = time.monotonic()
                clients = {job.client: 0.0 for job in self._running + entering}
                self._shares.begin(clients)
                tokens, rows = self._advance(entering)
                self._account(clients, tokens, rows, time.monotonic() - start)
        except BaseException as error:
            self._failure = error
            with self._changed:
                jobs, self._waiting, self._running = self._waiting + self._running, [], []
            for job in jobs:
                job.on_piece(RuntimeError("the thread of the batcher has ended; restart the server"))
            raise

    def _take(self) -> list[WritingJob] | None:
        """Wait for work; the jobs that enter now. None when all is done and the batcher closed."""
        with self._changed:
            while not self._waiting and not self._running:
                if self._is_closed:
                    return None
                self._changed.wait()
            entering = self._admitted()
            self._waiting = [job for job in self._waiting if job not in entering]
            return entering

    def _admitted(self) -> list[WritingJob]:
        """Those that wait for whom there is room, in turns by client."""
        entering: list[WritingJob] = []
        rows: Counter[Client] = Counter()
        tokens: Counter[Client] = Counter()
        for job in self._running:
            rows[job.client] += len(job.texts)
            tokens[job.client] += job.decoding.cost
        present = {job.client for job in self._running + self._waiting}
        for job in sorted(self._waiting, key=lambda one: one.client.clock):  # stable: of equals, the first that came
            new, cost = len(job.texts), job.decoding.cost
            if rows.total() + new > self._rows or tokens.total() + cost > self._tokens:
                break  # it is the next: smaller ones do not overtake it
            share = 1 / (len(present) + 1)
            is_over = rows[job.client] + new > share * self._rows or tokens[job.client] + cost > share * self._tokens
            if is_over and rows[job.client]:
                continue
            entering.append(job)
            rows[job.client] += new
            tokens[job.client] += cost
        return entering

    def _advance(self, entering: list[WritingJob]) -> tuple[int, int]:
        """One step; the tokens that it wrote, and the number of its rows."""
        self.decoder.enter([job.decoding for job in entering])
        with self._changed:
            self._running += entering
            left = [job for job in self._running if job.is_cancelled]
        self._leave(left)
        before = _num_tokens(self._running)
        try:
            self.decoder.step()
        except Exception as error:  # noqa: BLE001 - reported to those who wait
            for job in self._running:
                job.on_piece(error)
            self._leave(list(self._running))
            return 0, 0
        rows = self.decoder.num_rows
        tokens = _num_tokens(self._running) - before
        done = [job for job in self._running if self._hand_out(job)]
        self._leave(done)
        return tokens, rows

    def _leave(self, jobs: list[WritingJob]) -> None:
        if not jobs:
            return
        self.decoder.remove([job.decoding for job in jobs])
        with self._changed:
            self._running = [job for job in self._running if job not in jobs]
        for job in jobs:
            self._shares.leave(job.client)

    def _hand_out(self, job: WritingJob) -> bool:
        """Pass on what the step added to the texts of a job; whether the job is done."""
        if job.decoding.failure is not None:
            job.on_piece(job.decoding.failure)
            return True
        for number, text in enumerate(job.texts):
            is_looked_at = job.is_streamed or job.options.stop or job.decoding.top
            if text.reason is not None or not (is_looked_at or text.row.is_done):
                continue
            piece = _piece(number, text, job)
            if piece is not None and not job.is_cancelled:
                job.on_piece(piece)
        return job.decoding.is_done

    def _account(self, clients: dict[Client, float], tokens: int, rows: int, seconds: float) -> None:
        # Equal shares, however many rows each client has: a step takes about as long for one as for several.
        self._shares.end(clients, dict.fromkeys(clients, seconds / len(clients)))
        self._speed += 0.2 * (tokens / max(seconds, 1e-4) - self._speed)
        if self._observe is not None and rows:
            self._observe(tokens, rows, seconds)


def _num_tokens(jobs: Sequence[WritingJob]) -> int:
    return sum(len(text.row.tokens) for job in jobs for text in job.texts)


def _piece(number: int, text: _Text, job: WritingJob) -> Piece | None:
    """What can no longer change in a text, without what was handed out before."""
    row, stops = text.row, job.options.stop
    whole = text.growing.of([token.id for token in row.tokens])
    if len(row.tokens) > len(text.ends):
        place = len(whole if row.is_done else without_tail(whole, ()))
        text.ends.append(max(place, *text.ends[-1:], 0))
    found, is_stopped = cut_at_stop(whole, stops)
    if is_stopped:
        row.is_done, text.reason = True, "stop"
    elif row.is_done:
        text.reason = "end" if row.ended else "length"
    final = found if text.reason is not None else without_tail(found, stops)
    if text.reason is None and (not job.is_streamed or len(final) <= text.shown):
        return None
    if text.reason in ("end", "length"):
        last = len(text.ends)
    elif text.reason == "stop":  # of the token in which the stop string begins, a part may remain
        last = sum(start < len(final) for start in [0, *text.ends][: len(text.ends)])
    else:
        last = bisect_right(text.ends, len(final))
    tokens = tuple(row.tokens[text.handed : last]) if job.decoding.top else ()
    places = tuple([0, *text.ends][text.handed : text.handed + len(tokens)])
    piece = Piece(number, final[text.shown :], tokens, text.reason, len(row.tokens), row.end, places)
    text.shown, text.handed = len(final), max(text.handed, last)
    return piece
