"""Several processes that train one model: the same run as one process makes, killed, resumed, on another number of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.batch import Batch
from regard.data.feed import Feed
from regard.data.sampler import Sampler
from regard.data.slots import Slots
from regard.data.store import encode_pairs
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.recipe import load_recipe
from regard.training.checkpoint import list_checkpoints
from regard.training.display import Display
from regard.training.distributed import Ranks, own_device
from regard.training.fast import fast_path
from regard.training.metrics import read_metrics
from regard.training.run import train
from tests.tiny import reversal_pairs, write_recipe
from tests.training.test_run import assert_same_weights

STEPS = 24


def start(processes: int, recipe: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """The command of the guide; processes and what they start are a group of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "regard", "train", str(recipe), "--out", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]


def run(processes: int, recipe: Path, out: Path, *more: str, code: int = 0) -> str:
    process = start(processes, recipe, out, *more)
    said: str = process.communicate(timeout=120)[0]
    assert process.returncode == code, said
    return said


def alone(recipe: Path, out: Path, *sets: str, resume: bool = False) -> None:
    train(load_recipe(recipe, sets), out, resume=resume, display=Display())


def losses(run: Path, kind: str) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_metrics(run / "metrics.jsonl") if r["kind"] == kind]


def assert_same_losses(one: Path, other: Path) -> None:
    for kind in ("train", "valid"):
        (steps, found), (others, expected) = zip(*losses(one, kind)), zip(*losses(other, kind))  # noqa: B905
        assert steps == others
        assert found == pytest.approx(expected, rel=1e-5), kind


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout; an update is about 20 pairs."""
    path = write_recipe(
        tmp_path_factory.mktemp("recipe"), steps=STEPS, lr=3e-3, log_every=1, save_every=8, validate_every=8, average=3
    )
    path.write_text(path.read_text().replace("[train]", "dropout = 0.0\n[train]"))
    return path


@pytest.fixture(scope="module")
def one(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    out = tmp_path_factory.mktemp("one") / "run"
    alone(recipe, out)
    return out


@pytest.fixture(scope="module")
def two(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of two processes; what they said is in a file."""
    out = tmp_path_factory.mktemp("two") / "run"
    (out.parent / "said").write_text(run(2, recipe, out))
    return out


@pytest.mark.slow
def test_two_processes_make_the_run_of_one(one: Path, two: Path) -> None:
    assert len(losses(one, "train")) == STEPS
    assert losses(one, "train")[0][1] > 1.1 * losses(one, "train")[-1][1]  # it learns, so a wrong gradient would show
    assert_same_losses(one, two)


@pytest.mark.slow
def test_the_first_process_alone_writes_and_prints(two: Path) -> None:
    said = (two.parent / "said").read_text()
    assert said.count("valid  step 8 ") == said.count("try it ") == said.count("; 2 processes") == 1
    assert [r["step"] for r in read_metrics(two / "metrics.jsonl") if r["kind"] == "train"] == list(range(1, STEPS + 1))
    assert not list(two.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_a_checkpoint_of_two_processes_goes_on_with_another_number(
    processes: int, recipe: Path, one: Path, two: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(two, out)
    (out / "report.html").unlink()
    for path in list_checkpoints(out / "checkpoints")[1:]:
        shutil.rmtree(path)
    if processes == 1:
        alone(recipe, out, resume=True)
    else:
        assert "going on from step 8" in run(processes, recipe, out, "--resume")
    assert_same_losses(out, one)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """With dropout: every process goes on with the random numbers that it had."""
    recipe = write_recipe(tmp_path / "recipe", steps=40, lr=3e-3, log_every=1, save_every=5, validate_every=20)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(2, recipe, whole)
    process = start(2, recipe, killed)
    wait_until(process, lambda: (killed / "checkpoints" / "step-000010").is_dir())
    os.kill(last_process(process.pid), signal.SIGKILL)
    said = process.communicate(timeout=60)[0]  # the others do not wait for one that will not come back
    assert process.returncode != 0
    assert not (killed / "report.html").exists(), said
    assert not children(process.pid)
    assert "going on from step" in run(2, recipe, killed, "--resume")
    assert_same_weights(whole, killed)
    assert losses(whole, "train") == losses(killed, "train")


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def children(group: int) -> dict[int, int]:
    """Processes that train in this session, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            if os.getsid(int(folder.name)) == group or b"TORCHELASTIC_RUN_ID" in b"".join(words):
                ranks = [int(word[5:]) for word in words if word.startswith(b"RANK=")]
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if ranks and parent == group:
                    found[ranks[0]] = int(folder.name)
        except (OSError, ValueError):  # it has ended, or is somebody else's
            continue
    return found


def last_process(group: int) -> int:
    ranks = children(group)
    assert sorted(ranks) == [0, 1]
    return ranks[1]


@pytest.mark.slow
def test_a_mistake_is_said_once_and_ends_all(recipe: Path, tmp_path: Path) -> None:
    said = run(2, recipe, tmp_path / "run", "--set", "data.valid=nothing.{src,tgt}", code=1)
    assert said.count("nothing.src") == 1
    assert not (tmp_path / "run").exists()


# --- shares, without starting processes ---


SLOTS = Slots(src_tokens=128, tgt_tokens=96, pairs=12, max_length=40)


@pytest.mark.parametrize("slots", [None, SLOTS], ids=["batches", "slots"])
@pytest.mark.parametrize(("processes", "accumulate"), [(2, 2), (3, 3), (2, 4), (3, 1)])
def test_the_processes_share_out_every_update(
    tmp_path: Path, slots: Slots | None, processes: int, accumulate: int
) -> None:
    pairs = reversal_pairs(90, 5)
    lines = [side for pair in pairs for side in pair]
    store = encode_pairs(pairs, Tokenizer.train(lines, 380, tmp_path))
    if slots is not None and accumulate % processes:
        with pytest.raises(UserError, match=r"train\.accumulate must be a multiple of the number of processes"):
            feed_of(store, accumulate, slots, 0, processes)
        return
    feeds = [feed_of(store, accumulate, slots, rank, processes) for rank in range(processes)]
    whole = feed_of(store, accumulate, slots, 0, 1)
    for _ in range(15):
        expected, shares = next(whole), [next(feed) for feed in feeds]
        assert {share.count for share in shares} == {expected.count}
        assert {(share.epoch, share.position) for share in shares} == {(expected.epoch, expected.position)}
        found = [part for share in shares for part in share.parts]
        if slots is None:
            assert sentences(found) == sentences(expected.parts)
        else:
            assert [part.tolist() for part in found] == [part.tolist() for part in expected.parts]
    assert feeds[0].epoch >= 2
    for feed in [whole, *feeds]:
        feed.close()


def feed_of(store, accumulate, slots, rank, processes) -> Feed:
    sampler = Sampler(store.src_lengths, store.tgt_lengths, 70, 3, store.corpora, slots)
    return Feed(store, sampler, 1, 2, accumulate, slots, "cpu", rank, processes)


def sentences(parts: list[Batch]) -> list[list[int]]:
    found = []
    for part in parts:
        ends = np.cumsum(part.tgt_layout.lengths)[:-1]
        found += [each.tolist() for each in np.split(part.labels.numpy(), ends)]
    return found


def test_several_processes_take_the_fast_path_without_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.fast.has_triton", lambda: True)
    path = fast_path("auto", torch.device("cuda"), torch.bfloat16, 2)
    assert path is not None and path.attention and path.compile and not path.graph
    with pytest.raises(UserError, match=r"train\.fast: graph is for one process"):
        fast_path("slots,graph", torch.device("cuda"), torch.bfloat16, 2)


def test_a_named_gpu_is_not_for_several_processes() -> None:
    with pytest.raises(UserError, match=r"train\.device must be auto, cpu or cuda with several processes"):
        own_device("cuda:1", 0)


def test_one_process_has_nobody_to_ask() -> None:
    ranks, parameter = Ranks(), torch.zeros(3, requires_grad=True)
    assert ranks.first_does(lambda: 5) == 5
    assert ranks.from_first({"a": 1}) == {"a": 1}
    assert ranks.agree([1.5], True) == ([1.5], True)
    ranks.add_up([parameter])
    assert parameter.grad is None
