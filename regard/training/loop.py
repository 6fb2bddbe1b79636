"""The training loop.

    until the run is over:
        set the learning rate for this step
        take the next update's data from the feed, which prepares it ahead
        apply it: loss and gradients, clipping, optimizer step (update.py); move the average
        at intervals: log, validate, save a checkpoint

Everything that changes from step to step is in `RunState`, the model, the optimizer, the feed and torch's random state; a
checkpoint holds all of it. With several processes (`regard/parallel/ranks.py`), all run this loop in step.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.feed import Feed
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError
from regard.models.transformer import Transformer
from regard.parallel.ranks import Ranks
from regard.progress import counted
from regard.recipe import TrainRecipe
from regard.task_table import FIGURES
from regard.tasks.task import Validator
from regard.training.checkpoint import prune, random_states, save_checkpoint
from regard.training.display import Display
from regard.training.folder import RunFolder, out_of_time
from regard.training.metrics import RecordWriter
from regard.training.optimizer import MovingAverage, learning_rate, set_learning_rate, warmup_steps
from regard.training.sharded import reshard
from regard.training.update import PlainUpdate, SlotUpdate

VALIDATIONS, SAVES = 10, 20  # per run, where the recipe sets no interval
LOG_SECONDS = 10.0  # between two log lines, where the recipe sets no number of steps
FIRST_LOG = 5  # steps before the first log line, however slow the machine is
_TRAINING_PER_VALIDATION = 4  # with a time budget, train at least this many times as long as a validation takes
RESERVE_SHARE = 0.02  # of a time budget, reserved for the end until a validation has been timed


@dataclass
class RunState:
    """Counters and scores of a run, saved in checkpoints as JSON under these names."""

    step: int = 0
    seconds: float = 0.0  # spent on the run so far, resumed parts included
    prepared: float = 0.0  # of those, spent on preparing data and compiling
    best: float | None = None  # lowest monitored value of a validation
    best_step: int = 0
    stale: int = 0  # validations since the best
    start: float | None = None  # monitored value of the model in train.init
    start_loss: float | None = None  # its validation loss, which decides between equal scores
    validation_seconds: float = 0.0  # duration of the last validation and its checkpoint
    # Loss, nll, tokens and seconds since the last log line.
    window: tuple[float, float, int, float] = (0.0, 0.0, 0, 0.0)


@dataclass
class RunLength:
    """The length of a run, in steps or seconds, and how much of it is done."""

    total_steps: int | None
    total_seconds: float | None
    num_final_validations: int = 1  # after the last step

    def progress(self, state: RunState) -> float:
        """0 at the first step, 1 at the end."""
        if self.total_steps is not None:
            return state.step / self.total_steps
        assert self.total_seconds is not None
        last = (0.5 + self.num_final_validations) * state.validation_seconds
        reserve = max(RESERVE_SHARE * self.total_seconds, last + 1.0)
        available = self.total_seconds - state.prepared - min(reserve, 0.2 * self.total_seconds)
        return min(1.0, (state.seconds - state.prepared) / available) if available > 0 else 1.0

    def remaining(self, state: RunState) -> float | None:
        """Estimated seconds left."""
        done = self.progress(state)
        spent = state.seconds - state.prepared
        return spent * (1.0 - done) / done if done > 0 else None


class Interval:
    """Every `every` steps, or `count` times per run where `every` is 0."""

    def __init__(self, every: int, count: int) -> None:
        self.every, self.count = every, count

    def due(self, step: int, before: float, after: float) -> bool:
        """Whether the step that took the progress from `before` to `after` completes an interval."""
        if self.every:
            return step % self.every == 0
        return math.floor(after * self.count + 1e-9) > math.floor(before * self.count + 1e-9)


@dataclass
class Window:
    """Sums since the last log line, kept on the device until they are logged."""

    total: Tensor
    nll: Tensor
    tokens: int = 0  # with labels
    timed_tokens: int = 0  # those that speed is measured by, of updates that did not compile
    started: float = field(default_factory=time.perf_counter)
    paused: float = 0.0  # seconds spent on compiling, validating and saving


class Trainer:
    """Runs the training loop: updates, logs, validations and checkpoints, until the run is over or stopped.

    `shadow` is a second model of the same shape: the moving average where the recipe has one, else a copy for validation.
    """

    def __init__(
        self,
        recipe: TrainRecipe,
        model: Transformer,
        shadow: Transformer,
        optimizer: torch.optim.Optimizer,
        feed: Feed,
        apply: PlainUpdate | SlotUpdate,
        store: Store,
        tokenizer: Tokenizer,
        validator: Validator | None,
        length: RunLength,
        state: RunState,
        checkpoints: Path,
        logs: list[RecordWriter],
        display: Display,
        autocast: torch.dtype | None,
        ranks: Ranks | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        """Only the first process has logs; only it has a validator, unless the model is sharded. `fingerprint` is that of the
        data, for checkpoints to keep."""
        self.recipe, self.model, self.shadow, self.optimizer = recipe, model, shadow, optimizer
        self.feed, self.apply = feed, apply
        self.store, self.tokenizer, self.validator = store, tokenizer, validator
        self.length, self.state, self.checkpoints = length, state, checkpoints
        self.logs, self.display, self.autocast = logs, display, autocast
        self.ranks = ranks or Ranks()
        self.fingerprint = dict(fingerprint or {})
        self.device = next(model.parameters()).device
        self.average = MovingAverage(shadow, recipe.ema) if recipe.ema else None
        self.warmup = warmup_steps(recipe, length.total_steps)
        self.validation = Interval(recipe.validate_every, VALIDATIONS)
        self.saving = Interval(recipe.save_every, SAVES)
        self.stop_requested = False  # in this process
        self.stops = False  # agreed on by all processes
        self._log_is_due = False
        self.saved_step = state.step  # the last step saved in a checkpoint
        self._window = self._new_window(*state.window)
        self._norm = torch.zeros(())  # of the last update's gradient, before clipping
        self._parent = os.getppid()
        self._clock = time.perf_counter() - state.seconds
        self._validated_at = state.seconds

    def run(self) -> bool:
        """Train to the end; False if the user stopped the run. The last step is saved either way."""
        self.model.train()
        # torchrun forwards a Ctrl-C that the processes also get from the terminal, and kills them itself if need be.
        with on_interrupt(self._request_stop, second_ends=self.ranks.size == 1):
            if self.recipe.init and self.state.step == 0:
                self._measure_start()
            before = self.length.progress(self.state)
            while before < 1.0 and not self.stops and not self._is_stale():
                rate = self.update() if self.apply.is_warmed_up else self._first_update()
                self._tick()
                after = self.length.progress(self.state)
                if self._log_is_due or after >= 1.0:
                    self._log(rate)
                    self._window = self._new_window()
                started = time.perf_counter()
                validated = self._is_validation_due(before, after)
                is_best = self.validate() if validated else False
                scheduled = self.saving.due(self.state.step, before, after) or after >= 1.0
                if is_best or scheduled:
                    self.save(scheduled)
                paused = time.perf_counter() - started
                self._window.paused += paused
                if validated:
                    [self.state.validation_seconds], _ = self.ranks.agree([paused], False)
                    self._validated_at = self.state.seconds
                before = after
        if self.saved_step != self.state.step:
            self.save(scheduled=not self.stops)
        return not self.stops

    def _measure_start(self) -> None:
        """Validate the init model. It is the best so far: a step must beat it to become the model that is written."""
        started = time.perf_counter()
        record = self.measure()
        self.state.start, self.state.start_loss = self.monitored(record), float(record["loss"])
        self.state.best, self.state.best_step = self.state.start, 0
        [spent], _ = self.ranks.agree([time.perf_counter() - started], False)
        self.state.prepared += spent
        self.state.validation_seconds = spent
        self._tick()
        self._validated_at = self.state.seconds
        self._check_budget("preparing and validating the model in train.init")
        self.write({"kind": "valid", **self.position(), **record, "best": True})
        self._window = self._new_window()

    def _first_update(self) -> float:
        """An update that compiles; its time counts as preparation, not as training."""
        started, window, tokens = time.perf_counter(), self._window, self._window.timed_tokens
        rate = self.update()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        [spent], _ = self.ranks.agree([time.perf_counter() - started], False)
        self.state.prepared += spent
        self._tick()
        self._check_budget("preparing and compiling", ", or skip compilation with --set train.fast=off")
        window.paused += spent
        window.timed_tokens = tokens
        return rate

    def _check_budget(self, doing: str, remedy: str = "") -> None:
        if self.length.total_seconds is not None and self.length.progress(self.state) >= 1.0:
            folder = RunFolder(self.checkpoints.parent)
            raise out_of_time(folder, self.length.total_seconds / 60, doing, self.state.prepared, remedy)

    def update(self) -> float:
        """One optimizer step; returns its learning rate."""
        recipe, state, window = self.recipe, self.state, self._window
        state.step += 1
        progress = self.length.progress(state)
        timed = self.length.total_steps is None
        rate = learning_rate(recipe, self.model.config.d_model, state.step, self.warmup, progress, timed)
        set_learning_rate(self.optimizer, rate)
        prepared = next(self.feed)
        try:
            result = self.apply(prepared.parts, prepared.count)
        except torch.OutOfMemoryError as error:
            raise RegardError(
                f"out of memory at step {state.step:,} with {prepared.tokens:,} tokens in "
                f"{counted(len(prepared.parts), 'micro-batch', 'micro-batches')}; "
                f"set train.accumulate = {2 * recipe.accumulate} and resume, or on the fast path start over"
            ) from error
        window.total += result.total
        window.nll += result.nll
        window.tokens += prepared.count
        window.timed_tokens += prepared.tokens
        self._norm = result.norm
        if self.average is not None:
            self.average.update(self.model, state.step)
        return rate

    def validate(self) -> bool:
        """Validate the model or its moving average; returns whether it is the best so far."""
        self._check_diverged()
        record = self.measure()
        monitored = self.monitored(record)
        is_best = self.state.best is None or monitored < self.state.best
        if is_best:
            self.state.best, self.state.best_step, self.state.stale = monitored, self.state.step, 0
        else:
            self.state.stale += 1
        self._tick()
        self.write({"kind": "valid", **self.position(), **record, "best": is_best})
        return is_best

    def monitored(self, record: dict[str, Any]) -> float:
        """The value that decides which model is best; lower is better."""
        value = float(record[self.recipe.monitor])
        return -value if FIGURES[self.recipe.monitor].higher_is_better else value

    def measure(self) -> dict[str, Any]:
        """Validate on the first process, or on all where the model is sharded; all receive the first one's record."""
        record = {}
        if self.validator is not None:
            if self.average is None:
                self.shadow.load_state_dict(self.model.state_dict())
            record = self.validator.measure(self.shadow, self.device, self.autocast)
            reshard(self.shadow)
        measured: dict[str, Any] = self.ranks.broadcast(record)
        return measured

    def save(self, scheduled: bool) -> None:
        """Write a checkpoint. Only `scheduled` ones, saved at the run's intervals and its end, are averaged."""
        self._tick()
        self._check_diverged()
        window = self._window
        trained = time.perf_counter() - window.started - window.paused
        self.state.window = (float(window.total), float(window.nll), window.tokens, trained)
        sampler = self.feed.state()
        state = {"scheduled": scheduled, "run": asdict(self.state), "sampler": sampler, "data": self.fingerprint}
        average = self.shadow if self.average is not None else None
        random = random_states(self.ranks)
        step = self.state.step
        save_checkpoint(self.checkpoints, step, self.model, self.optimizer, average, state, random, self.ranks)
        if self.ranks.is_first:
            best = self.checkpoints / f"step-{self.state.best_step:06d}"
            prune(self.checkpoints, self.recipe.average, [best])
        self.saved_step = self.state.step

    def _log(self, rate: float) -> None:
        window = self._window
        loss = float(window.total) / window.tokens  # waits for the device
        # If every update so far has compiled, there is no other time to report.
        tokens, paused = (window.timed_tokens, window.paused) if window.timed_tokens else (window.tokens, 0.0)
        seconds = time.perf_counter() - window.started - paused
        self._tick()
        record = {
            "kind": "train",
            **self.position(),
            "loss": loss,
            "nll": float(window.nll) / window.tokens,
            "lr": rate,
            "grad_norm": float(self._norm),
            "tokens_per_second": tokens / max(seconds, 1e-9),
        }
        self._check_finite("loss", loss)
        self.write(record)

    def _check_diverged(self) -> None:
        """Stop a diverged run before it is validated or saved."""
        self._check_finite("loss", float(self._window.total))
        self._check_finite("gradient norm", float(self._norm))

    def _check_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            raise RegardError(
                f"the {name} at step {self.state.step:,} is {value}: the run has diverged, after its last checkpoint; "
                f"resume with a lower train.lr or with train.clip = 1.0, or start over with a longer train.warmup"
            )

    def note(self, text: str) -> None:
        """Show a line and keep it in the metrics."""
        self.display.say(text)
        for log in self.logs:
            log.write({"kind": "note", "text": text})

    def write(self, record: dict[str, Any]) -> None:
        """Log and show a record."""
        for log in self.logs:
            log.write(record)
        if record["kind"] == "valid":
            self.display.valid(record)
        else:
            shown = {"progress": self.length.progress(self.state), "remaining": self.length.remaining(self.state)}
            self.display.train({**record, **shown})

    def position(self) -> dict[str, Any]:
        """Step, epoch and time, for a record."""
        return {
            "step": self.state.step,
            "epoch": round(self.feed.progress, 4),
            "elapsed": round(self.state.seconds, 2),
        }

    def _is_log_due(self) -> bool:
        if self.recipe.log_every:
            return self.state.step % self.recipe.log_every == 0
        elapsed = time.perf_counter() - self._window.started
        is_timed = self.apply.is_warmed_up and self._window.timed_tokens > 0
        return is_timed and (elapsed >= LOG_SECONDS or self.state.step == FIRST_LOG)

    def _new_window(self, total: float = 0.0, nll: float = 0.0, tokens: int = 0, seconds: float = 0.0) -> Window:
        sums = [torch.tensor(value, device=self.device) for value in (total, nll)]
        return Window(sums[0], sums[1], tokens, tokens, time.perf_counter() - seconds)

    def _is_validation_due(self, before: float, after: float) -> bool:
        """Whether to validate the step that took the progress from `before` to `after`. The end of the run is validated when the
        final weights are chosen. With a time budget, validations are skipped that would take too large a share of it."""
        if after >= 1.0 or not self.validation.due(self.state.step, before, after):
            return False
        has_time_budget = self.length.total_steps is None and not self.validation.every
        trained = self.state.seconds - self._validated_at
        return not has_time_budget or trained >= _TRAINING_PER_VALIDATION * self.state.validation_seconds

    def _is_stale(self) -> bool:
        return bool(self.recipe.patience) and self.state.stale >= self.recipe.patience

    def _tick(self) -> None:
        """Read the clock, and agree with the other processes on it, on logging and on stopping; the first one's clock counts."""
        if self.ranks.size > 1 and os.getppid() != self._parent:
            self.stop_requested = True  # torchrun is gone, so nothing else could stop the run
        seconds, due = time.perf_counter() - self._clock, float(self._is_log_due())
        (self.state.seconds, due), self.stops = self.ranks.agree([seconds, due], self.stop_requested)
        self._log_is_due = bool(due)

    def _request_stop(self) -> None:
        if self.stop_requested:  # another SIGTERM
            return
        self.stop_requested = True
        if self.ranks.size == 1:
            again = f"press Ctrl-C again to quit at once and lose everything after step {self.saved_step:,}"
            self.display.stopping(f"stopping after this step; {again}")


@contextmanager
def on_interrupt(callback: Callable[[], None], second_ends: bool = True) -> Iterator[None]:
    """Within the block, the first Ctrl-C or SIGTERM calls `callback`; with `second_ends`, a second Ctrl-C ends the program."""

    def handle(number: int, frame: object) -> None:
        if second_ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        callback()

    try:
        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: there are no signals to catch
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
