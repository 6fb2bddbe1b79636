"""Writes docs/recipe.md, the reference of every recipe field, from the dataclasses and their comments:

python -m scripts.recipe_reference
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import tokenize
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from regard.config import ModelConfig
from regard.models.presets import PRESETS
from regard.recipe import CorpusEntry, DataRecipe, DecodeRecipe, ModelRecipe, TokenizerRecipe, TrainRecipe
from regard.rules import table_keys
from regard.settings import TABLES, FrontConfig, HeadConfig

DOCUMENT = Path(__file__).parents[1] / "docs" / "recipe.md"
SECTIONS: dict[str, tuple[type, ...]] = {
    "data": (DataRecipe,),
    "tokenizer": (TokenizerRecipe,),
    "model": (ModelRecipe, ModelConfig),
    "train": (TrainRecipe,),
    "decode": (DecodeRecipe,),
}
_NOT_IN_RECIPES = {("ModelRecipe", "fields"), *(("ModelConfig", name) for name in ("vocab_size", *TABLES))}
_TYPES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    tuple[CorpusEntry, ...]: "corpus or list",
    tuple[str, ...]: "list",
    dict[str, Any]: "table",
    dict[str, float]: "table",
}
EXAMPLE = """\
[data]
source = "en"
target = "de"
train = ["europarl.{en,de}.xz", { path = "tatoeba.tsv", weight = 2.0 }]
valid = "newstest2013.{en,de}"
test = "newstest2014.{en,de}"

[tokenizer]
vocab_size = 32000

[model]
preset = "base"
norm_position = "pre"

[train]
steps = 100000
batch_tokens = 25000
optimizer = "adamw"
schedule = "cosine"
lr = 1e-3

[decode]
beam = 4
"""
_INTRODUCTION = """\
# Recipe reference

<!-- Made by `python -m scripts.recipe_reference`; change the comments in regard/recipe.py and regard/config.py instead. -->

A recipe is a TOML file that describes a training run. [The guide](guide.md) explains how to use one; this page lists every field.
A complete example:

```toml
{example}```

Only `data.source`, `data.target`, `data.train`, `data.valid` and one of `train.steps`, `train.epochs` and `train.minutes` are
required. Fields of the file override the preset, and `--set section.key=value` on the command line overrides both. An unknown
key is an error. `regard train RECIPE.toml --dump-recipe` prints the resolved recipe.

A recipe may begin with `task`, before the first section: `"translate"` (the default), `"generate"` (a language model of text),
`"fill"` (a masked language model), `"classify"` and `"tag"` (labels of texts and of words) or `"embed"` (vectors of texts). A field
that begins with the name of a task is for that task alone; others refuse it. `generate` has no encoder and the tasks after it no
decoder; all of them set `train.label_smoothing` to 0 unless the recipe says otherwise, and `embed` refuses any other value.
"""


def render() -> str:
    """The text of docs/recipe.md."""
    blocks = [_INTRODUCTION.format(example=EXAMPLE)]
    for name, sources in SECTIONS.items():
        blocks.append(f"## [{name}]\n\n{inspect.getdoc(sources[0])}\n\n{_table(name, sources)}")
        if name == "model":
            blocks.append(_model_tables())
        if name == "data":
            blocks.append(
                f"An entry of `data.train` that is a table has these fields:\n\n{_table('train', (CorpusEntry,))}"
            )
    blocks.append(_presets())
    return "\n".join(blocks)


def _table(section: str, sources: tuple[type, ...]) -> str:
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for source in sources:
        meanings, hints = field_comments(source), get_type_hints(source)
        for field in dataclasses.fields(source):
            if (source.__name__, field.name) in _NOT_IN_RECIPES:
                continue
            if field.name not in meanings:
                raise SystemExit(f"{source.__name__}.{field.name} must have a comment that says what it means")
            cells = f"`{field.name}`", _type(hints[field.name]), _default(field), _sentence(meanings[field.name])
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def field_comments(source: type) -> dict[str, str]:
    """The comment of each field of a dataclass: at the end of its line or, without one, the lines directly above it."""
    code = inspect.getsource(source)
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokens
        if token.type == tokenize.COMMENT
    }
    [definition] = ast.parse(code).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines = [comments[n][0] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in comments]
        above = node.lineno - 1
        while not lines[:1] and comments.get(above, ("", False))[1]:
            above -= 1
        lines = lines or [comments[n][0] for n in range(above + 1, node.lineno)]
        if lines:
            found[node.target.id] = " ".join(lines)
    return found


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    kinds = [hint] if hint in _TYPES else [kind for kind in get_args(hint) if kind is not NoneType]
    return " or ".join(_type(kind) if get_origin(kind) is Literal else _TYPES[kind] for kind in kinds)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    if field.default is None:
        return "unset"
    if field.default_factory is not dataclasses.MISSING or field.default == ():
        return "empty"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f'`"{field.default}"`' if isinstance(field.default, str) else f"`{field.default}`"


def _sentence(comment: str) -> str:
    return comment[0].upper() + comment[1:].rstrip(".")


def _model_tables() -> str:
    """The tables inside [model]."""
    shared = ", ".join(f"`{key}`" for key in table_keys("encoder"))
    blocks = [
        f"`[model.encoder]` and `[model.decoder]` hold what differs in one of the two stacks, any of: {shared}.\n",
        f"`[model.front]`: {_lowered(FrontConfig)}\n\n{_table('model.front', (FrontConfig,))}",
        f"`[model.head]`: {_lowered(HeadConfig)}\n\n{_table('model.head', (HeadConfig,))}",
    ]
    return "\n".join(blocks)


def _lowered(source: type) -> str:
    text = inspect.getdoc(source) or ""
    return text[0].lower() + text[1:]


def _presets() -> str:
    """What each preset sets, a row for each."""
    names = list(next(iter(PRESETS.values())))
    heads = [*(f"`{name}`" for name in names), "others"]
    lines = [f"| preset | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for preset, values in PRESETS.items():
        others = ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in values.items() if name not in names)
        lines.append(f"| `{preset}` | {' | '.join(str(values[name]) for name in names)} | {others} |")
    return (
        "## Presets\n\n"
        "`base` and `big` are the paper's models. `tiny` and `small` are for 10,000 to 300,000 pairs. `fast` and `fastest`\n"
        "have a shallow decoder, the part that runs once per token of a translation. The others are language models: GPT-2's two\n"
        "smallest sizes, and the blocks of LLaMA and PaLM in the size of the first. `init` takes the shape of the model in\n"
        "`train.init`; only `dropout` may then be set beside it.\n\n" + "\n".join(lines) + "\n"
    )


def main() -> None:
    DOCUMENT.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
