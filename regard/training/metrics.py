"""The metrics of a run: one JSON object per line in metrics.jsonl and, if enabled, TensorBoard events.

Records have a "kind": "train" and "valid" (with a "step"), "test" (a "name" and its "scores") or "note" (a "text").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from regard.errors import UserError
from regard.files import write_atomic


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
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(_line(record))
        self._file.flush()

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
    """Writes the numbers and sample translations of records as TensorBoard events."""

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
                text = "\n".join(f"    {name}: {sample[name]}" for name in ("source", "reference", "translation"))
                self._writer.add_text(f"sample {number}", text, self._step)
        if kind != "train":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; skips an incomplete last line, which a killed run leaves."""
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError
        except ValueError:
            # Complete lines end in a newline, so only text after the last newline can be incomplete.
            if number == len(lines):
                break
            raise UserError(f"{path}, line {number}: must be a JSON object, but is {_shortened(line)}") from None
        records.append(record)
    return records


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
        return {str(key): _plain(item) for key, item in value.items()}
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
