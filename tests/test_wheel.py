"""The wheel, built and used outside the checkout: what people install is what is tested here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """A wheel that is installed into a folder of its own."""

    wheel: Path
    site: Path
    elsewhere: Path  # an empty folder to run from, where the checkout cannot be imported by accident

    def python(self, *args: str) -> str:
        """Standard output of `python *args`, run elsewhere with the installed wheel; it must succeed."""
        return run([sys.executable, *args], cwd=self.elsewhere, PYTHONPATH=str(self.site))


def run(command: list[str], cwd: Path, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **variables})
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    work = tmp_path_factory.mktemp("wheel")
    copy = work / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    # Tests and a stray module lie beside the package, as in a checkout, and must not get into the wheel.
    shutil.copytree(ROOT / "regard", copy / "regard", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "recipes", copy / "recipes")
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "stray.py").touch()

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(copy)], cwd=work)
    (wheel,) = work.glob("*.whl")
    site, elsewhere = work / "site", work / "elsewhere"
    elsewhere.mkdir()
    run([*pip, "install", "--no-index", "--no-deps", "--target", str(site), str(wheel)], cwd=work)
    return Installed(wheel, site, elsewhere)


def test_wheel_holds_the_whole_package_and_nothing_else(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "regard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    recipes = {
        f"regard/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "recipes").rglob("*") if path.is_file()
    }
    assert {name for name in names if ".dist-info/" not in name} == package | recipes
    assert "regard/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_installed_wheel_is_what_gets_imported(installed: Installed) -> None:
    place = installed.python("-c", "import regard; print(regard.__file__)").strip()
    assert Path(place).is_relative_to(installed.site)


def test_installed_wheel_answers_help(installed: Installed) -> None:
    assert "translate" in installed.python("-m", "regard", "--help")


def test_installed_script_answers_help(installed: Installed) -> None:
    assert "translate" in installed.python(str(installed.site / "bin" / "regard"), "--help")


def test_installed_wheel_translates(installed: Installed) -> None:
    golden = ROOT / "tests" / "golden" / "bundle-1"
    said = installed.python("-m", "regard", "translate", "-m", str(golden), "--device", "cpu", "a b c", "", "p o n m")
    assert said.splitlines() == ["c b a", "", "m n o p"]


def test_installed_wheel_brings_its_recipes(installed: Installed) -> None:
    said = installed.python("-m", "regard", "reproduce", "--list")
    assert "wmt14-en-de-big" in said and "\n  WMT14 English to German, big\n" in said


def test_installed_wheel_brings_its_model(installed: Installed) -> None:
    assert "Wetter" in installed.python("-m", "regard", "translate", "--device", "cpu", "The weather is nice today.")
