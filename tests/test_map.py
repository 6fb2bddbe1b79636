"""The map of the code: an import only points down it, and what must start fast imports nothing slow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.task_table import TASK_SETTINGS

PACKAGE = Path(__file__).parents[1] / "regard"

# Top to bottom. A module may import its own unit and the units on lines below it; units on one line never each other.
# A unit is a file or folder directly under regard/; `__init__` is the package itself, as in `from regard import load`.
MAP: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("__init__",),
    ("reproduce",),
    ("augment",),
    ("api",),
    ("serve",),
    ("explain",),
    ("training",),
    ("catalogue",),
    ("tasks",),
    ("understanding",),
    ("translation", "writing"),
    ("adapter",),
    ("export",),
    ("importing",),
    ("comparison",),
    ("accuracy",),
    ("evaluate",),
    ("generate",),
    ("bundle",),
    ("card",),
    ("weights",),
    ("recipe",),
    ("models",),
    ("families",),
    ("nn", "data"),
    ("parallel",),
    ("aligning",),
    ("config", "layout", "device"),
    ("rules",),
    ("settings",),
    ("task_table",),
    ("files", "progress", "builtin", "version", "cpu", "toml", "html_page"),
    ("bounds",),
    ("arguments",),
    ("errors",),
    ("escaping",),
)
LINE = {unit: number for number, units in enumerate(MAP) for unit in units}


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node below `tree`, without the bodies of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield other
                yield from nodes_that_run(other)
            continue
        yield child
        yield from nodes_that_run(child)


def imported_names(node: ast.AST, parent: str) -> list[str]:
    """Dotted names that `node` imports, each with what is taken from it: `from a.b import c` gives `a.b.c`.

    `parent` is the package that relative imports start from. Of `import_module(...)` only literal names are seen.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = parent.split(".")
            above = above[: len(above) - node.level + 1]
            base = ".".join([*above, node.module] if node.module else above)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[0].value
        if called in ("import_module", "__import__") and isinstance(name, str):
            return [parent + name if name.startswith(".") else name]
    return []


def unit_of(name: str, package: Path) -> str | None:
    """The unit that a dotted name belongs to; None for names outside the package."""
    root, _, rest = name.partition(".")
    if root != package.name:
        return None
    unit = rest.split(".")[0]
    is_module = (package / f"{unit}.py").exists() or (package / unit).is_dir() or unit in LINE
    return unit if unit and is_module else "__init__"


def violations(package: Path) -> list[str]:
    """One line for each module that is not on the map and each import that does not point down it."""
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        unit = place.parts[0].removesuffix(".py")
        if unit not in LINE:
            found.append(f"{package.name}/{place} is not on the map: add it to the map")
            continue
        parent = ".".join([package.name, *place.parent.parts])
        for node in nodes_that_run(ast.parse(path.read_text(encoding="utf-8"))):
            for name in imported_names(node, parent):
                target = unit_of(name, package)
                where = f"{package.name}/{place}:{getattr(node, 'lineno', 0)} imports {name}"
                if target is None or target == unit:
                    continue
                if target not in LINE:
                    found.append(f"{where}, which is not on the map: add it to the map")
                elif LINE[target] < LINE[unit]:
                    found.append(f"{where}, which is above it on the map")
                elif LINE[target] == LINE[unit]:
                    found.append(f"{where}, which is beside it on the map")
    return found


def test_every_import_points_down_the_map() -> None:
    assert not violations(PACKAGE), "\n".join(["", *violations(PACKAGE)])


# --- The checker itself, on a small package with one planted import ---


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A lawful package named regard."""
    files = {
        "__init__.py": "from regard.api import load\n",
        "api.py": "def load():\n    from regard.models.transformer import Transformer\n    import torch\n",
        "cli.py": "from regard import load\nimport regard\n",
        "models/__init__.py": "",
        "models/transformer.py": "from regard.models import presets\nfrom ..nn import attention\n",
        "models/presets.py": "from regard import errors\n",
        "nn/__init__.py": "",
        "nn/attention.py": "import regard.layout as layout\n",
        "data/__init__.py": "",
        "data/batch.py": "from .. import layout\n",
        "layout.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import regard.nn.attention\n",
        "errors.py": "",
    }
    root = tmp_path / "regard"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_checker_passes_a_lawful_package(package: Path) -> None:
    assert violations(package) == []


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("errors.py", "import regard.cli", "above"),
        ("errors.py", "import os, regard.layout as below", "above"),
        ("layout.py", "from regard.nn.attention import attend", "above"),
        ("layout.py", "from regard import models", "above"),
        ("layout.py", "from regard import load", "above"),  # the package itself is above its parts
        ("layout.py", "from . import load", "above"),
        ("nn/attention.py", "from ..models import presets", "above"),
        ("nn/attention.py", "def lazy():\n    from regard.models.presets import base", "above"),
        ("nn/attention.py", "from importlib import import_module\nimport_module('regard.models')", "above"),
        ("nn/attention.py", "from regard.data.batch import Batch", "beside"),
        ("data/batch.py", "class Batch:\n    def lazy(self):\n        from regard.nn import attention", "beside"),
        ("data/batch.py", "try:\n    import regard.nn\nexcept ImportError:\n    pass", "beside"),
        ("data/batch.py", "if not TYPE_CHECKING:\n    import regard.nn", "beside"),
        ("data/batch.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import regard.nn", "beside"),
        ("api.py", "from regard.cli import main", "above"),
        ("surprise.py", "", "add it to the map"),
        ("surprise/__init__.py", "", "add it to the map"),
    ],
)
def test_checker_finds_a_planted_violation(package: Path, place: str, code: str, complaint: str) -> None:
    path = package / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(code + "\n", encoding="utf-8")
    (found,) = violations(package)
    assert found.startswith(f"regard/{place}")
    assert complaint in found


def test_checker_finds_an_import_of_a_module_that_is_not_on_the_map(package: Path) -> None:
    (package / "surprise.py").write_text("", encoding="utf-8")
    (package / "cli.py").write_text("from regard import surprise\n", encoding="utf-8")
    assert [line for line in violations(package) if line.startswith("regard/cli.py:1") and "add it to the map" in line]


# --- What must start fast, and what must work without the extras ---


def python(code: str) -> str:
    """Standard output of `code` in a fresh interpreter, which must succeed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_after(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of these top-level modules are loaded once `code` has run."""
    return (
        python(f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])")
        .splitlines()[-1]
        .split()
    )


@pytest.mark.parametrize(
    "module",
    [
        "regard",
        "regard.data.tokenizer",
        "regard.bundle",
        "regard.recipe",
        "regard.evaluate",
        "regard.cli",
        "regard.api",
        "regard.augment",
        "regard.parallel.crew",
        "regard.explain.save",
        "regard.serve.web.server",
    ],
)
def test_module_imports_without_torch(module: str) -> None:
    assert loaded_after(f"import {module}", ("torch",)) == []


def test_loading_a_model_does_not_import_torchs_compiler() -> None:
    """It takes longer to import than a small model takes to load."""
    code = (
        "from regard import load\nprint(load('tests/golden/bundle-1', engine='torch', device='cpu').translate('a b'))"
    )
    assert loaded_after(code, ("torch", "torch._dynamo")) == ["torch"]


def test_loaded_modules_are_noticed() -> None:
    assert loaded_after("import json", ("torch", "json")) == ["json"]


def test_help_imports_nothing_slow() -> None:
    code = """
import runpy, sys
sys.argv = ["regard", "--help"]
try:
    runpy.run_module("regard", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert loaded_after(code, ("torch", "numpy", "rich", "sacrebleu", "sentencepiece", "safetensors")) == []


# tensorboard, transformers and the like come with extras; py3langid and zstandard are for single tasks; triton comes with the
# CUDA builds of torch, and only the kernels that are written in it import it; of the server only regard/serve/web is HTTP.
OPTIONAL = (
    "py3langid", "zstandard", "tensorboard", "transformers", "ctranslate2", "fastapi", "starlette", "uvicorn", "pydantic",
    "prometheus_client", "sentencex", "triton", "onnx", "onnxruntime", "onnxscript", "matplotlib",
)  # fmt: skip

BLOCK = f"""
import importlib, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError("blocked: " + name, name=name)

sys.meta_path.insert(0, Block())
"""


def modules() -> list[str]:
    """Every module of Regard that is to be imported everywhere, by its dotted name."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.name.startswith("triton_")]
    paths = [path for path in paths if path.parent != PACKAGE / "serve" / "web"]
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in paths]
    return [".".join(part for part in module if part != "__init__") for module in parts]


@pytest.mark.slow
def test_every_module_imports_without_the_optional_packages() -> None:
    assert "regard.cli" in modules()
    python(f"{BLOCK}\nfor name in {modules()!r}:\n    importlib.import_module(name)")


def test_blocked_packages_cannot_be_imported() -> None:
    with pytest.raises(AssertionError, match="blocked: zstandard"):
        python(f"{BLOCK}\nimport zstandard")


def test_training_knows_no_task_by_name() -> None:
    """What differs between tasks is in regard/tasks/ and regard/task_table.py."""
    tasks = {path.stem for path in (PACKAGE / "tasks").glob("*.py")} - {"__init__", "task"}
    faults = []
    for path in [*sorted((PACKAGE / "training").glob("*.py")), PACKAGE / "recipe.py"]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in TASK_SETTINGS:
                faults.append(f"{path.name}, line {node.lineno}: the task {node.value!r}")
            faults += [
                f"{path.name}: imports {name}"
                for name in imported_names(node, "regard.training")
                if name.startswith("regard.tasks.") and name.split(".")[2] in tasks
            ]
    assert faults == []
