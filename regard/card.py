"""A bundle's card.md: what the model is, what it was trained on and how good it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from regard.bundle import Bundle

_STORED_AS = {
    "fp16": "16-bit floats, vectors as 32-bit floats",
    "int8": "8-bit integers with a scale for each row of a matrix, vectors as 32-bit floats",
}
_ROWS = {  # label in the card's table -> fact
    "parameters": "parameters",
    "imported from": "imported",
    "its weights": "imported_weights",
    "licence": "licence",
    "started from": "init",
    "adapter": "adapter",
    "training pairs": "pairs",
    "training documents": "documents",
    "training texts": "texts",
    "training sentences": "sentences",
    "training tokens": "tokens",
    "training corpora": "corpora",
    "steps": "steps",
    "weights": "weights",
    "trained on": "device",
    "date": "date",
}
# The heading of each task's models, and what they are; translation is named after its languages.
_TITLES = {
    "generate": ("Language model", "language model"),
    "fill": ("Masked language model", "masked language model"),
    "classify": ("Classifier", "classifier of texts"),
    "tag": ("Tagger", "tagger of words"),
    "embed": ("Text vectors", "model of vectors for texts"),
}
_USES = {
    "translate": "regard translate -m FOLDER TEXT",
    "generate": "regard generate -m FOLDER PROMPT",
    "fill": "regard fill -m FOLDER TEXT",
    "embed": "regard embed -m FOLDER TEXT",
    "classify": "regard classify -m FOLDER TEXT",
    "tag": "regard tag -m FOLDER TEXT",
}
_MAX_LABELS = 12
_MAX_IN_ROW = 4  # corpora listed in the table; more get their own list


def make_card(bundle: Bundle) -> str:
    """The text of card.md."""
    facts = bundle.facts
    corpora = facts.get("corpora", [])
    lines = [
        *_heading(bundle),
        *_table(bundle),
        *_validation(facts.get("valid", {}).get("metrics", {})),
        *_test_set(facts.get("test", {}).get("metrics", {})),
        *_baseline(facts.get("baseline", {})),
        *_scores(facts.get("scores", {})),
        *_checks(facts.get("checks", {})),
        *_list("Sources", facts.get("sources", [])),
        *_list("Limits", facts.get("limits", [])),
        *_list("Corpora", corpora if len(corpora) > _MAX_IN_ROW else []),
        *(["", f"Use: `{_USES[bundle.task]}`"] if bundle.task in _USES else []),
        "",
    ]
    return "\n".join(lines)


def _heading(bundle: Bundle) -> list[str]:
    made = "imported" if "imported" in bundle.facts else "trained"
    version = f" {bundle.facts['regard']}" if bundle.facts.get("regard") else ""
    title, what = _TITLES.get(bundle.task, (bundle.languages, "translation model"))
    return [f"# {title}", "", f"A Transformer {what} {made} with Regard{version}."]


def _table(bundle: Bundle) -> list[str]:
    config = bundle.config
    lines = [
        "",
        "| | |",
        "|---|---|",
        *([] if bundle.task == "translate" else [f"| task | {bundle.task} |"]),
        f"| layers | {' + '.join(str(stack.layers) for stack in config.stacks.values())} |",
        f"| d_model, d_ff, heads | {config.d_model}, {config.d_ff}, {config.num_heads} |",
        f"| vocabulary | {config.vocab_size:,} |",
    ]
    if bundle.takes_pairs:
        lines.append("| input | pairs of texts |")
    if config.head_settings.answer != "one":
        lines.append(f"| answer | {'several labels' if config.head_settings.answer == 'several' else 'a number'} |")
    if labels := config.head_settings.labels:
        shown = ", ".join(labels[:_MAX_LABELS]) + (", ..." if len(labels) > _MAX_LABELS else "")
        lines.append(f"| labels | {len(labels):,}: {shown} |")
    if bundle.stored != "fp32":
        lines.append(f"| stored as | {_STORED_AS[bundle.stored]} |")
    known = {label: bundle.facts[key] for label, key in _ROWS.items() if key in bundle.facts}
    return [*lines, *(f"| {label} | {_cell(value)} |" for label, value in known.items())]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) if len(value) <= _MAX_IN_ROW else f"{len(value):,}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _validation(metrics: Mapping[str, Any]) -> list[str]:
    shown = [f"{metric['name']} {metric['score']:.{_digits(metric['name'])}f}" for metric in metrics.values()]
    return ["", f"On its validation set: {', '.join(shown)}."] if shown else []


def _digits(name: str) -> int:
    """Digits after the point; nats and bits differ in the third."""
    return 3 if name in ("loss", "bits per byte") else 2


def _test_set(metrics: Mapping[str, Any]) -> list[str]:
    """A list and not table rows: signatures contain |, which separates cells."""
    lines = [f"- {metric['name']} {_score(metric)}, `{metric['signature']}`" for metric in metrics.values()]
    return ["", "On its test set:", "", *lines] if lines else []


def _baseline(baseline: Mapping[str, Any]) -> list[str]:
    """The first score of a simple model on the same test set."""
    if not baseline:
        return []
    return [
        f"- for comparison, {baseline['model']}: {baseline['name']} {baseline['score']:.2f} ({baseline['set']} set)"
    ]


def _scores(scores: Mapping[str, Any]) -> list[str]:
    """A table of scores on several test sets, {set: output of `regard evaluate --json`}, with their signatures. A set may lack
    metrics that another has."""
    if not scores:
        return []
    metrics: dict[str, Any] = {}
    for score in scores.values():
        for key, metric in score["metrics"].items():
            metrics.setdefault(key, metric)
    keys: list[str] = [key for key in ("bleu", "chrf") if key in metrics] or list(metrics)
    names = {key: metrics[key]["name"] for key in keys}
    lines = [
        "",
        "## Scores",
        "",
        f"| test set | sentences | {' | '.join(names.values())} |",
        "|---|---|" + "---|" * len(names),
    ]
    for test_set, score in scores.items():
        values = [_score(score["metrics"][key]) if key in score["metrics"] else "" for key in names]
        lines.append(f"| {test_set} | {score['sentences']:,} | {' | '.join(values)} |")
    return [*lines, "", *(f"- {metrics[key]['name']}: `{metrics[key]['signature']}`" for key in names)]


def _score(metric: Mapping[str, Any]) -> str:
    interval = f" ± {metric['confidence']:.2f}" if metric.get("confidence") else ""
    return f"{metric['score']:.{_digits(metric['name'])}f}{interval}"


def _checks(checks: Mapping[str, Any]) -> list[str]:
    """A table of lines that passed, {kind: {"passed": ..., "lines": ...}}."""
    rows = [
        f"| {kind} | {found['passed']:,} of {found['lines']:,} | {100 * found['passed'] / found['lines']:.1f} |"
        for kind, found in checks.items()
    ]
    what = "Lines with what must, and must not, be in their translation (`python -m benchmarks.checks`):"
    return ["", "## Checks", "", what, "", "| kind | passed | % |", "|---|---|---|", *rows] if rows else []


def _list(heading: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {heading}", "", *(f"- {line}" for line in lines)] if lines else []
