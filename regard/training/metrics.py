"""The metrics of a run: one JSON object per line in metrics.jsonl and, if enabled, TensorBoard events.

Records have a "kind": "train" and "valid" (with a "step"), "test" (a "name" and its "scores") or "note" (a "text").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from regard.errors import UserError
from regard.files import check_regular, write_all, write_atomic, writing
from regard.task_table import FIGURES, SAMPLE_KINDS, sample_kind


class RecordWriter(Protocol):
    """Where records go: a MetricsLog or TensorBoardLog."""

    def write(self, record: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """Appends records to a file and flushes each line, so that a reader sees it at once and a crash loses none."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        """Start a new file (None), or keep the records up to `resume_step` and append."""
        self.path = path
        kept = [] if resume_step is None or not path.exists() else _until_step(read_metrics(path), resume_step)
        write_atomic(path, "".join(_line(record) for record in kept))
        self._file = path.open("ab", buffering=0)

    def write(self, record: Mapping[str, Any]) -> None:
        data = _line(record).encode("utf-8")
        with writing(self.path, len(data)):
            write_all(self._file, data)

    def close(self) -> None:
        self._file.close()


def import_tensorboard() -> Any:
    """torch's SummaryWriter; TensorBoard is an optional extra of Regard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard = true needs the extra: pip install 'regard[tensorboard]'") from None
    return SummaryWriter


class TensorBoardLog:
    """Writes the numbers and samples of records as TensorBoard events."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        writer = import_tensorboard()
        purge_step = None if resume_step is None else resume_step + 1
        self._writer: Any = writer(str(folder), purge_step=purge_step)
        self._step = resume_step or 0

    def write(self, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        self._step = int(record.get("step", self._step))
        if kind == "note":
            self._writer.add_text("notes", str(record["text"]), self._step)
        elif kind == "test":
            for metric in record["scores"]["metrics"].values():
                self._writer.add_scalar(f"test/{record['name']}/{metric['name']}", metric["score"], self._step)
        else:
            for name, value in record.items():
                if name not in ("kind", "step") and isinstance(value, int | float) and not isinstance(value, bool):
                    self._writer.add_scalar(f"{kind}/{name}", value, self._step)
            for number, sample in enumerate(record.get("samples", ()), start=1):
                # Four spaces make a code block, so that the text is not read as Markdown.
                text = "\n".join(f"    {name}: {sample[name]}" for name in sample_kind(sample).names)
                self._writer.add_text(f"sample {number}", text, self._step)
        if kind != "train":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; skips an incomplete last line, which a killed run leaves."""
    check_regular(path, "it is read while it grows")
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError
        except (ValueError, RecursionError):
            # Complete lines end in a newline, so only text after the last newline can be incomplete.
            if number == len(lines):
                break
            raise UserError(
                f"{path}, line {number}: must be a JSON object, but is {_shortened(line)}; {_REMEDY}"
            ) from None
        if fault := record_fault(record):
            raise UserError(f"{path}, line {number}: {fault}; {_REMEDY}")
        records.append(record)
    return records


_REMEDY = "delete the line, or the whole file to begin it anew"
_NUMBERS = ("epoch", "elapsed", "nll", "lr", "grad_norm", "tokens_per_second", *FIGURES)
_LARGEST = 1e100  # far beyond any measurement, and small enough to compute with


def record_fault(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a record, if anything: readers count on the fields of each kind."""
    kind = record.get("kind")
    if not isinstance(kind, str):
        return f"`kind` must be text, but is {kind!r}"
    if kind == "note":
        return None if isinstance(record.get("text"), str) else "a note must have a `text`"
    if kind == "test":
        return None if _are_scores(record) else "a test must have a `name` and `scores`"
    if kind not in ("train", "valid"):
        return None  # of a later version; nobody here reads it
    step = record.get("step")
    if not isinstance(step, int) or not _is_number(step) or step < 0:
        return f"`step` must be a whole number, but is {step!r}"
    for name in _NUMBERS:
        if (value := record.get(name)) is not None and not _is_number(value):
            return f"`{name}` must be a number, but is {value!r}"
    samples = record.get("samples") or []
    if not isinstance(samples, list) or not all(map(_is_sample, samples)):
        return f"`samples` must have {' or '.join(', '.join(kind.names) for kind in SAMPLE_KINDS)}"
    return None


def _is_number(value: Any) -> bool:
    """Whether a chart can show it."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value == 0 or 1 / _LARGEST < abs(value) < _LARGEST)
    )


def _is_sample(sample: Any) -> bool:
    return isinstance(sample, dict) and any(
        all(isinstance(sample.get(name), str) for name in kind.names) for kind in SAMPLE_KINDS
    )


def _are_scores(record: Mapping[str, Any]) -> bool:
    scores = record.get("scores")
    if not (isinstance(record.get("name"), str) and isinstance(scores, dict)):
        return False
    metrics, notes = scores.get("metrics"), scores.get("notes", [])
    if not isinstance(metrics, dict) or not isinstance(notes, list) or not isinstance(scores.get("sentences"), int):
        return False
    return all(
        isinstance(metric, dict)
        and isinstance(metric.get("name"), str)
        and isinstance(metric.get("signature"), str)
        and _is_number(metric.get("score"))
        and (metric.get("confidence") is None or _is_number(metric["confidence"]))
        for metric in metrics.values()
    )


def _until_step(records: list[dict[str, Any]], resume_step: int) -> list[dict[str, Any]]:
    """The records up to a step; one without a step belongs to the step before it. Records of the end of the run are dropped, since
    the resumed run writes them again."""
    kept, step = [], 0
    for record in records:
        step = record.get("step", step)
        if step <= resume_step and record.get("kind") != "test" and "weights" not in record:
            kept.append(record)
    return kept


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """The value as JSON: NaN and infinity become null, NumPy and torch scalars plain numbers."""
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, str | int | float) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        # Invalid bytes may have become lone surrogates, which UTF-8 cannot encode.
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _shortened(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def best_validation(valid: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The newest validation marked as best; without a mark, the last one."""
    marked = [record for record in valid if record.get("best")]
    return marked[-1] if marked else valid[-1] if valid else None
