"""What `deploy/` holds fits what is there: paths, extras, options, addresses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from regard.cli import main
from regard.serve.limits import Limits
from tests.serve.server import ROOT, running

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
UNIT = (ROOT / "deploy" / "regard.service").read_text()


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile and what follows it, on one line."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in text.splitlines() if line.strip()]


def only(name: str) -> str:
    (found,) = [rest for instruction, rest in instructions() if instruction == name]
    return found


def test_what_the_dockerfile_copies_is_there_and_is_sent_to_docker() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    sources = [part for name, rest in instructions() if name == "COPY" for part in rest.split()[:-1]]
    assert "regard" in sources and "pyproject.toml" in sources
    for source in sources:
        assert (ROOT / source).exists() and f"!{source}" in ignored, source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(sources)  # without them it cannot be built


def test_the_dockerfile_installs_extras_and_versions_that_there_are() -> None:
    (install,) = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = shlex.split(install)
    (extras,) = [re.fullmatch(r"\.\[(.*)\]", word) for word in words if word.startswith(".[")]
    assert extras is not None and set(extras[1].split(",")) <= set(project["optional-dependencies"])
    pinned = (ROOT / words[words.index("--constraint") + 1]).read_text()
    for package in ("ctranslate2", "fastapi", "torch", "uvicorn"):
        assert re.search(rf"^{package}==", pinned, re.MULTILINE), package
    version = re.match(r"python:(\d+\.\d+)", only("FROM"))
    assert version is not None and f">={version[1]}" == project["requires-python"]
    assert only("USER") != "root"
    assert only("STOPSIGNAL") == "SIGTERM"


def test_commands_are_ones_that_regard_knows(capfd: pytest.CaptureFixture[str]) -> None:
    (start,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    for program, *arguments in (json.loads(only("ENTRYPOINT")), shlex.split(start)):
        assert Path(program).name == "regard"
        model = [] if "-m" in arguments else ["-m", "/nowhere/at/all"]
        assert main([*arguments, *model]) == 2
        assert "there is no such model" in capfd.readouterr().err  # all else was understood


def test_the_health_check_tells_a_ready_server_from_none() -> None:
    command = json.loads(only("HEALTHCHECK").partition("CMD ")[2])
    assert command[:2] == ["python", "-c"] and f":{only('EXPOSE')}/" in command[2]

    def check(port: int) -> int:
        code = command[2].replace(f":{only('EXPOSE')}/", f":{port}/")
        return subprocess.run([sys.executable, "-c", code], capture_output=True, env=behind_a_proxy).returncode

    # Docker hands the proxies of the machine on; the way to the server in the same container leads past them.
    behind_a_proxy = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    behind_a_proxy |= {"http_proxy": "http://127.0.0.1:9"}

    with running() as server:
        assert check(server.port) == 0
        server.stop()
        assert check(server.port) != 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "regard.service"
    # The program is not installed here; any that is will do.
    unit.write_text(UNIT.replace("ExecStart=/opt/regard/.venv/bin/regard", f"ExecStart={sys.executable}"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = tmp_path / "broken.service"
    broken.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=nonsense"))
    assert subprocess.run(["systemd-analyze", "verify", str(broken)], capture_output=True, text=True).stderr


def test_a_stop_leaves_time_to_finish() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(seconds) > Limits().drain_seconds
