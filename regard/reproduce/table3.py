"""The table of variations beside the paper's: which of its differences to the base model show here, too, beyond the noise of seeds.
No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.reproduce.results import Variation

BASE = "base"
# Two-sided 95% quantiles of Student's t for the seeds of the base row, by their number less one.
_QUANTILES = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Noise:
    """The base row over its seeds."""

    mean: float
    spread: float  # half of the 95% interval in which one more run would lie

    @classmethod
    def of(cls, values: Sequence[float]) -> Noise:
        """
        >>> round(Noise.of([20.0, 20.2, 19.8, 20.0]).spread, 2)
        0.58
        """
        if len(values) < 2:
            return cls(values[0] if values else math.nan, math.inf)
        quantile = _QUANTILES[min(len(values) - 1, len(_QUANTILES) - 1)]
        return cls(statistics.mean(values), quantile * statistics.stdev(values) * math.sqrt(1 + 1 / len(values)))


def verdict(difference: float, noise: float, paper: float) -> str:
    """Whether a difference to the base row is the paper's, by its sign.

    >>> verdict(-1.5, 0.4, -0.9), verdict(0.6, 0.4, -0.3), verdict(0.2, 0.4, -0.3), verdict(0.1, 0.4, 0.0)
    ('agrees', 'differs', 'within noise', 'agrees')
    """
    if abs(difference) <= noise:
        return "agrees" if paper == 0 else "within noise"
    return "agrees" if difference * paper > 0 else "differs"


def compare_rows(variations: Sequence[Variation], records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each variation; the seeds of the base row are one."""
    seeds = [records[each.name] for each in variations if is_base(each) and each.name in records]
    noise = {field: Noise.of([float(record[field]) for record in seeds]) for field in ("bleu", "perplexity")}
    base = next((each for each in variations if each.name == BASE), None)
    lines: list[dict[str, Any]] = []
    for each in variations:
        if each.name not in records or (is_base(each) and each.name != BASE):
            continue
        record, is_first = records[each.name], each.name == BASE
        line: dict[str, Any] = {"row": f"base, {len(seeds)} seeds" if is_first else each.name}
        line["million parameters"] = record["parameters"] / 1e6
        for field, paper in (("bleu", each.bleu), ("perplexity", each.perplexity)):
            here = noise[field].mean if is_first else float(record[field])
            line |= {
                field: here,
                f"{field}, difference": None,
                f"{field}, paper": paper,
                f"{field}, paper's difference": None,
            }
            line[f"{field}, verdict"] = f"± {noise[field].spread:.2f}" if is_first and len(seeds) > 1 else ""
            theirs = getattr(base, field) if base else None
            if not is_first and paper is not None and theirs is not None and seeds:
                line[f"{field}, difference"] = here - noise[field].mean
                line[f"{field}, paper's difference"] = round(paper - theirs, 2)
                line[f"{field}, verdict"] = verdict(
                    here - noise[field].mean, noise[field].spread, round(paper - theirs, 2)
                )
        lines.append(line)
    return lines


def is_base(variation: Variation) -> bool:
    return variation.name.split(",")[0] == BASE


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """How many rows agree.

    >>> summary([{"bleu, verdict": "agrees", "perplexity, verdict": "within noise"}])
    'BLEU: 1 agrees, 0 differ, 0 within noise; perplexity: 0 agree, 0 differ, 1 within noise'
    """
    said = []
    for field, name in (("bleu", "BLEU"), ("perplexity", "perplexity")):
        verdicts = [line[f"{field}, verdict"] for line in lines]
        agree, differ = verdicts.count("agrees"), verdicts.count("differs")
        said.append(
            f"{name}: {agree} agree{'s' * (agree == 1)}, {differ} differ{'s' * (differ == 1)}, "
            f"{verdicts.count('within noise')} within noise"
        )
    return "; ".join(said)


def not_run(variations: Sequence[Variation], records: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence that names the rows of a sweep that was cut short; empty if none is missing."""
    missing = [each.name for each in variations if each.name not in records]
    return f" Not run: {'; '.join(missing)}." if missing else ""


def table_lines(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Cells, a heading first."""
    heads = ["row", "million parameters"]
    for name in ("BLEU", "perplexity"):
        heads += [name, "vs. base", f"paper's {name}", "vs. base", ""]
    cells = [heads]
    for line in lines:
        row = [line["row"], f"{line['million parameters']:.1f}"]
        for field, form in (("bleu", ".1f"), ("perplexity", ".2f")):
            row += [
                f"{line[field]:.2f}",
                _signed(line[f"{field}, difference"]),
                "" if line[f"{field}, paper"] is None else format(line[f"{field}, paper"], form),
                _signed(line[f"{field}, paper's difference"]),
                line[f"{field}, verdict"],
            ]
        cells.append(row)
    return cells


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"
