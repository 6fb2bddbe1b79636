"""Documents on the server's disk: who may read them, what a full disk does, and what a killed server leaves behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.serve.document_files import DocumentFiles
from regard.serve.document_jobs import DocumentJobs
from regard.serve.keys import add_key
from regard.serve.private_files import document_folder, reserve, sweep_folders, write_private
from regard.serve.refusal import Unavailable
from tests.serve.server import GOLDEN, ROOT, held_by, running, started

resource = pytest.importorskip("resource")
FIELDS = {"source": "src", "target": "tgt"}
FULL = "the server has no room for documents at the moment; try again in 60 s"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may have more than 1,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_documents_and_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    files, jobs = DocumentFiles(tmp_path), DocumentJobs(tmp_path / "documents")
    name = files.begin("txt", 100)
    assert [mode(path) for path in tmp_path.iterdir()] == [0o600]
    files.finish(name, b"text")
    jobs.finish(jobs.begin("txt", 60, 10), b"text", 4)
    add_key(tmp_path / "keys.json", "alice")
    old = tmp_path / "old.json"
    old.write_text('{"keys": []}')
    old.chmod(0o644)
    add_key(old, "alice")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 5 and {mode(path) for path in written} == {0o600}
    with document_folder() as folder:
        assert mode(folder) == 0o700


@pytest.mark.usefixtures("full_disk")
def test_without_room_nothing_is_begun_and_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=FULL):
        DocumentFiles(tmp_path).begin("txt", 1_001)
    with pytest.raises(Unavailable, match=FULL):
        DocumentJobs(tmp_path / "documents").begin("txt", 60, 1_001)
    with pytest.raises(Unavailable, match=FULL):
        write_private(tmp_path / "file", bytes(1_001))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.usefixtures("full_disk")
def test_a_result_larger_than_the_room_leaves_nothing_but_the_reason(tmp_path: Path) -> None:
    files, jobs = DocumentFiles(tmp_path), DocumentJobs(tmp_path / "documents")
    with pytest.raises(Unavailable, match=FULL):
        files.finish(files.begin("txt", 10), bytes(1_001))
    handle = jobs.begin("txt", 60, 10)
    with pytest.raises(Unavailable, match=FULL):
        jobs.finish(handle, bytes(1_001), 4)
    jobs.fail(handle, FULL)
    state = jobs.find(handle)
    assert state is not None and (state.status, state.error) == ("error", FULL)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_room_is_reserved_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    reserve(path, 100_000)
    assert path.stat().st_size == 100_000
    write_private(path, b"short")
    assert path.read_bytes() == b"short"
    files = DocumentFiles(tmp_path)
    name = files.begin("txt", 10)
    files.give_up(name)
    files.give_up(name)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_on_a_full_disk_documents_are_refused_before_they_are_translated(tmp_path: Path) -> None:
    """The engine is held still: the answer must not wait for it."""
    hold = tmp_path / "hold"
    hold.touch()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = f"""
import os, resource
os.environ["TMPDIR"] = {str(temporary)!r}
from regard.serve.web import server
def fill_disk():  # the last step before it serves
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
server.keep_memory = fill_disk
{held_by(hold)}"""
    with running(code=code) as server:
        for content in (b"a b c", b"a b c\n" * 300_000):  # Starlette would write the second to a file
            upload = {"file": ("a.txt", content)}
            answer = server.post("/translate_file", files=upload, data=FIELDS)
            assert (answer.status_code, answer.json()) == (503, {"error": FULL})
            assert answer.headers["retry-after"] == "60"
            answer = server.post("/v2/document", files=upload, data={"target_lang": "tgt"})
            assert (answer.status_code, answer.json()) == (503, {"message": FULL})
        assert not started(hold).exists()
        (folder,) = temporary.iterdir()
        assert [path.name for path in folder.rglob("*") if path.is_file()] == [".regard"]
        hold.unlink()
        assert server.post("/translate", json={"q": "a b c", **FIELDS}).status_code == 200
        server.stop()
    assert list(temporary.iterdir()) == []


def test_documents_of_a_killed_server_are_removed_by_the_next_and_those_of_a_running_one_are_not(
    tmp_path: Path,
) -> None:
    code = f"import os\nos.environ['TMPDIR'] = {str(tmp_path)!r}"
    upload = {"files": {"file": ("a.txt", b"a b c")}, "data": FIELDS}
    with running(code=code) as first:
        assert first.post("/translate_file", **upload).status_code == 200
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    (left,) = tmp_path.iterdir()
    assert len(list(left.glob("*.txt"))) == 1
    with running(code=code) as second:
        (own,) = tmp_path.iterdir()
        assert own != left
        url = second.post("/translate_file", **upload).json()["translatedFileUrl"]
        sweep_folders(tmp_path)  # as a third would
        assert second.get(url.removeprefix(second.url)).content == b"c b a"
        second.stop()
    assert list(tmp_path.iterdir()) == []


def test_only_own_folders_are_swept(tmp_path: Path) -> None:
    unmarked = tmp_path / "regard-serve-unmarked"  # by an earlier version, which may be running
    unmarked.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / ".regard").touch()
    (tmp_path / "regard-serve-link").symlink_to(target)
    sweep_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3 and (target / ".regard").exists()


def test_old_documents_of_earlier_versions_are_removed(tmp_path: Path) -> None:
    """Such a folder has no mark, and its server may still run."""
    folder = tmp_path / "regard-serve-abc"
    folder.mkdir()
    old, new, other = folder / f"{'a' * 32}.docx", folder / f"{'b' * 32}.docx", folder / "mine.docx"
    part, link = folder / f"{'c' * 32}.pdf.part", folder / f"{'d' * 32}.txt"
    for path in (old, new, other, part):
        path.write_bytes(b"text")
    link.symlink_to(other)
    for path in (old, other, part):
        os.utime(path, (0, 0))
    os.utime(link, (0, 0), follow_symlinks=False)
    sweep_folders(tmp_path)
    assert {path.name for path in folder.iterdir()} == {new.name, other.name, link.name}


def test_a_temporary_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    code = f"""
import sys, tempfile
tempfile.tempdir = {str(tmp_path / "nowhere")!r}
from regard.cli import main
sys.exit(main(["serve", "-m", {str(GOLDEN)!r}, "--port", "0"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == (
        "regard: no temporary folder for documents can be made (No such file or directory); set TMPDIR to one with some room\n"
    )
