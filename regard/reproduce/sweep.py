"""A sweep over variations of one recipe: each row is a training run in a process of its own, several at a time if asked, and is
recorded as soon as it ends. The text is prepared once. A stopped sweep goes on where it was, also within a row."""

from __future__ import annotations

import hashlib
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.bundle import load_bundle
from regard.errors import Interrupted, RegardError, UserError
from regard.files import write_atomic
from regard.recipe import Recipe
from regard.reproduce.records import append_record, read_records
from regard.reproduce.results import Variation
from regard.training.loop import on_interrupt

POLL = 0.2  # seconds between looks at the running rows
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """A variation and the recipe that it stands for."""

    variation: Variation
    recipe: Recipe

    @property
    def key(self) -> str:
        """Tells a row of these settings from an earlier one of the same name."""
        return hashlib.sha256(self.recipe.to_toml().encode()).hexdigest()[:16]


@dataclass
class Running:
    row: Row
    process: subprocess.Popen[bytes]
    begun: float
    log: Path
    before: float = 0.0  # seconds of earlier starts

    @property
    def seconds(self) -> float:
        """Training time over all starts, except those that ended in a crash."""
        return self.before + time.monotonic() - self.begun


class Sweep:
    """The folder of a sweep: prepared/, rows/NAME/, rows/NAME.log, and a line for each finished row in rows.jsonl."""

    def __init__(self, out: Path, rows: Sequence[Row], say: Say) -> None:
        self.out, self.rows, self.say = out, list(rows), say
        self.records = out / "rows.jsonl"
        self.prepared = out / "prepared"
        self.stop_requested = False

    def finished(self) -> dict[str, dict[str, Any]]:
        """The rows that are done, by name; one of other settings is refused."""
        keys = {row.variation.name: row.key for row in self.rows}
        done: dict[str, dict[str, Any]] = {}
        for record in read_records(self.records):
            if keys.get(record["row"], record["key"]) != record["key"]:
                raise UserError(
                    f"{self.records}: the row {record['row']!r} was made with other settings; use another folder with --out"
                )
            done[record["row"]] = record
        return done

    def run(self, parallel: int, seconds: float = math.inf) -> bool:
        """Run what is left, `parallel` rows at a time, for at most `seconds`, plus the time in which rows save and end. True: all
        rows are done. Ctrl-C and SIGTERM stop it (`stop_requested`)."""
        self.stop_requested = False
        with on_interrupt(self._request_stop, second_ends=False):
            return self._run(parallel, time.monotonic() + seconds)

    def _request_stop(self) -> None:
        self.stop_requested = True

    def _run(self, parallel: int, deadline: float) -> bool:
        left = [row for row in self.rows if row.variation.name not in self.finished()]
        running: list[Running] = []
        failed: list[str] = []
        if left:
            self.prepare()
        try:
            while (left or running) and time.monotonic() < deadline and not self.stop_requested:
                while left and len(running) < parallel:
                    running.append(self.start(left.pop(0)))
                time.sleep(POLL)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    failed += self.end(each)
        finally:
            stopped = bool(running)
            self.stop(running)
        if failed:
            raise RegardError(f"{len(failed)} of the rows failed: {'; '.join(failed)}")
        return not left and not stopped

    def prepare(self) -> None:
        """Vocabulary and token ids, once for all rows."""
        if (self.prepared / "store" / "store.json").is_file():
            return
        from regard.training.display import make_display
        from regard.training.fine_tuning import resolve_recipe
        from regard.training.folder import RunFolder, claim_folder
        from regard.training.open_run import OpenRun
        from regard.training.prepare import find_corpora
        from regard.training.run import prepare_data

        recipe = resolve_recipe(self.rows[0].recipe)
        corpora = find_corpora(recipe)
        shutil.rmtree(self.prepared, ignore_errors=True)  # half of an earlier preparation
        self.prepared.mkdir(parents=True)
        folder = RunFolder(self.prepared)
        claim_folder(folder, recipe)
        prepare_data(recipe, OpenRun(corpora), folder, make_display())

    def start(self, row: Row) -> Running:
        """Start or resume a row."""
        place = self.out / "rows" / row.variation.folder
        place.parent.mkdir(parents=True, exist_ok=True)
        recipe = place.with_name(f"{place.name}.toml")
        write_atomic(recipe, row.recipe.to_toml())
        log = place.with_name(f"{place.name}.log")
        with log.open("ab") as file:
            command = [sys.executable, "-m", "regard.reproduce.row", str(recipe), str(place), str(self.prepared)]
            # The row ends when this pipe closes, however this process ends.
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.PIPE)
        self.say(f"{row.variation.name}: started, {log}")
        spent = log.with_suffix(".seconds")
        before = float(spent.read_text(encoding="utf-8")) if spent.is_file() else 0.0
        return Running(row, process, time.monotonic(), log, before)

    def end(self, running: Running) -> list[str]:
        """Record a row that has ended; what failed, if it did."""
        name, place = running.row.variation.name, self.out / "rows" / running.row.variation.folder
        with running.process:
            pass  # closes its pipe
        if (code := running.process.returncode) and self.stop_requested:
            # Ctrl-C reaches the rows, too, which may end before they are asked to.
            self._stopped(running)
            return []
        if code:
            lines = running.log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            self.say(f"{name}: failed with exit code {code}: {last}")
            return [f"{name} ({running.log}: {last})"]
        record = row_record(running.row, place, running.seconds)
        append_record(self.records, record)
        # Not needed once the row is scored; those of all rows would fill a small disk.
        for folder in ("checkpoints", "store"):
            shutil.rmtree(place / folder, ignore_errors=True)
        self.say(f"{name}: BLEU {record['bleu']:.2f}, perplexity {record['perplexity']:.2f}, {record['seconds']:.0f} s")
        return []

    def stop(self, running: Sequence[Running]) -> None:
        """Ask the rows to save and end, and wait until they have."""
        for each in running:
            each.process.send_signal(signal.SIGTERM)
        for each in running:
            with each.process as process:
                code = process.wait()
            if not code:  # it had just finished
                self.end(each)
            else:
                self._stopped(each)

    def _stopped(self, running: Running) -> None:
        """Keep the time of a row that is not finished."""
        write_atomic(running.log.with_suffix(".seconds"), f"{running.seconds:.1f}\n")
        self.say(f"{running.row.variation.name}: stopped; it resumes with the next start of the sweep")


def row_record(row: Row, place: Path, seconds: float) -> dict[str, Any]:
    """What is kept of a finished row."""
    from regard.training.metrics import read_metrics

    facts = load_bundle(place / "model").facts
    bleu = facts["test"]["metrics"]["bleu"]
    validations = [record for record in read_metrics(place / "metrics.jsonl") if record["kind"] == "valid"]
    chosen = [record for record in validations if record.get("weights") == facts["weights"]] or validations
    kept = ("parameters", "steps", "weights", "device", "date", "torch", "regard", "pairs")
    return {
        "row": row.variation.name,
        "key": row.key,
        "bleu": bleu["score"],
        "confidence": bleu["confidence"],
        "signature": bleu["signature"],
        "perplexity": chosen[-1]["perplexity"],
        "seconds": round(seconds, 1),
        "seed": row.recipe.train.seed,
        **{name: facts[name] for name in kept if name in facts},
    }


def interrupted(out: Path) -> Interrupted:
    return Interrupted(f"stopped; the finished rows are in {out / 'rows.jsonl'}, and the same command goes on")
