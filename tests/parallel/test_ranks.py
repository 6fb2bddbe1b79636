"""Several processes that train one model: the same run as one process makes, killed, resumed, on another number of them."""

from __future__ import annotations

import os
import shutil
import signal
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard.bundle import load_bundle, load_weights
from regard.cli import main
from regard.data.feed import Feed
from regard.data.pair_packing import PairPacking, make_sampler
from regard.data.pair_slots import PairSlots
from regard.data.pairs import PairBatch
from regard.data.store import store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.layout import SequenceLayout
from regard.parallel.ranks import Ranks, own_device
from regard.recipe import load_recipe
from regard.training.checkpoint import list_checkpoints
from regard.training.display import Display
from regard.training.fast import fast_path
from regard.training.metrics import read_metrics
from regard.training.recompute import recompute_layers
from regard.training.run import train
from tests.build import build, tiny_config
from tests.commands import children, finished, together, torchrun, wait_until
from tests.tiny import reversal_pairs, write_recipe
from tests.training.test_run import assert_same_weights, held, weights

STEPS = 24


def command(recipe: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(recipe), "--out", str(out), *more]


def run(processes: int, recipe: Path, out: Path, *more: str) -> str:
    """What the first of several processes said; all must end well, and the others say nothing."""
    codes, said = together(processes, *command(recipe, out, *more))
    assert codes == [0] * processes, "\n".join(said)
    assert said[1:] == [""] * (processes - 1)
    return said[0]


def alone(recipe: Path, out: Path, *sets: str, resume: bool = False) -> None:
    train(load_recipe(recipe, sets), out, resume=resume, display=Display())


def losses(run: Path, kind: str) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_metrics(run / "metrics.jsonl") if r["kind"] == kind]


def assert_same_losses(one: Path, other: Path, kinds: tuple[str, ...] = ("train", "valid"), rel: float = 1e-5) -> None:
    for kind in kinds:
        (steps, found), (others, expected) = zip(*losses(one, kind)), zip(*losses(other, kind))  # noqa: B905
        assert steps == others
        assert found == pytest.approx(expected, rel=rel), kind


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
    process = torchrun(2, "-m", "regard", *command(recipe, out))
    said = finished(process)
    assert process.returncode == 0, said
    (out.parent / "said").write_text(said)
    return out


@pytest.mark.slow
def test_two_processes_make_the_run_of_one(one: Path, two: Path) -> None:
    assert len(losses(one, "train")) == STEPS
    assert losses(one, "train")[0][1] > 1.1 * losses(one, "train")[-1][1]  # it learns, so a wrong gradient would show
    assert_same_losses(one, two)


@pytest.mark.slow
def test_batches_of_one_shape_muon_and_bpe_dropout_are_shared_out_too(recipe: Path, tmp_path: Path) -> None:
    changes = ("fast=slots", "accumulate=2", "optimizer=muon", "schedule=wsd", "lr=1e-3", "bpe_dropout=0.2")
    sets = [f"train.{change}" for change in changes]
    alone(recipe, tmp_path / "one", *sets)
    run(2, recipe, tmp_path / "two", *(word for each in sets for word in ("--set", each)))
    assert losses(tmp_path / "one", "train")[0][1] > 1.05 * losses(tmp_path / "one", "train")[-1][1]
    # Muon's steps are as long for a small gradient as for a large one, so that rounding grows.
    assert_same_losses(tmp_path / "one", tmp_path / "two", rel=2e-3)


@pytest.mark.slow
def test_the_first_process_alone_writes_and_prints(two: Path) -> None:
    said = (two.parent / "said").read_text()
    assert said.count("valid  step 8 ") == said.count("verdict ") == said.count("; 2 processes") == 1
    assert [r["step"] for r in read_metrics(two / "metrics.jsonl") if r["kind"] == "train"] == list(range(1, STEPS + 1))
    assert not list(two.rglob("*.tmp"))


def as_after_its_first_checkpoint(finished: Path, out: Path) -> Path:
    """A copy of a run as if it had been stopped there."""
    shutil.copytree(finished, out)
    (out / "report.html").unlink()
    for path in list_checkpoints(out / "checkpoints")[1:]:
        shutil.rmtree(path)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_a_checkpoint_of_two_processes_goes_on_with_another_number(
    processes: int, recipe: Path, one: Path, two: Path, tmp_path: Path
) -> None:
    out = as_after_its_first_checkpoint(two, tmp_path / "run")
    if processes == 1:
        alone(recipe, out, resume=True)
    else:
        assert "resuming from step 8" in run(processes, recipe, out, "--resume")
    assert_same_losses(out, one)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """With dropout: every process goes on with the random numbers that it had."""
    recipe = write_recipe(tmp_path / "recipe", steps=40, lr=3e-3, log_every=1, save_every=5, validate_every=20)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(2, recipe, whole)
    process = torchrun(2, held(tmp_path, 12, rank=1), *command(recipe, killed))
    wait_until(process, lambda: (killed / "checkpoints" / "step-000010").is_dir())
    os.kill(last_process(process.pid), signal.SIGKILL)
    said = finished(process)  # the others do not wait for one that will not come back
    assert process.returncode != 0
    assert not (killed / "report.html").exists(), said
    assert not children(process.pid)
    assert "resuming from step" in run(2, recipe, killed, "--resume")
    assert_same_weights(whole, killed)
    assert losses(whole, "train") == losses(killed, "train")


@pytest.mark.slow
def test_processes_whose_torchrun_was_killed_save_and_end(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=100_000, validate_every=100_000)
    out = tmp_path / "run"
    process = torchrun(2, "-m", "regard", *command(recipe, out))
    wait_until(process, lambda: bool(list_checkpoints(out / "checkpoints")))
    process.send_signal(signal.SIGKILL)
    said = finished(process)  # until the last of them has closed it
    [newest] = list_checkpoints(out / "checkpoints")[-1:]
    assert f"stopped at step {int(newest.name[5:])} and saved; resume with: torchrun ... -m regard train" in said
    alone(recipe, out, f"train.steps={int(newest.name[5:]) + 5}", resume=True)


@pytest.mark.slow
def test_a_stopped_run_of_two_processes_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=50_000, save_every=10_000, validate_every=50_000, log_every=1)
    metrics = tmp_path / "run" / "metrics.jsonl"
    process = torchrun(2, "-m", "regard", *command(recipe, tmp_path / "run"))
    wait_until(process, lambda: metrics.exists() and '"step": 3' in metrics.read_text())
    process.send_signal(signal.SIGTERM)
    said = finished(process)
    [saved] = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert f"stopped at step {int(saved.name[5:])} and saved; resume with: torchrun ... -m regard train" in said
    assert not children(process.pid)


# --- split over the processes ---


SPLIT = [word for name in ("shard=true", "recompute=true", "ema=0.9") for word in ("--set", f"train.{name}")]


@pytest.fixture(scope="module")
def split(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with the model split over two processes, layers that compute twice, and a moving average."""
    out = tmp_path_factory.mktemp("split") / "run"
    run(2, recipe, out, *SPLIT)
    return out


@pytest.mark.slow
def test_a_model_split_over_two_processes_makes_the_run_of_one(recipe: Path, one: Path, split: Path) -> None:
    assert_same_losses(split, one, kinds=("train",))
    [path, *_] = list_checkpoints(split / "checkpoints")
    files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    assert [name for name in files if not name.startswith("shards/")] == [
        "manifest.json", "random.safetensors", "state.json",
    ]  # fmt: skip
    shards = [name for name in files if name.startswith("shards/")]
    assert len(shards) == 2 and all(name.endswith(".safetensors") for name in shards)  # none of them a pickle
    with_average = [load_file(str(path / name)) for name in shards]
    rows = [tensors["average.embedding.weight"].shape[0] for tensors in with_average]
    assert sum(rows) == load_bundle(split / "model").config.vocab_size and max(rows) < sum(rows)
    assert load_bundle(split / "model").facts["weights"] == "moving average of the weights"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_shards_of_two_processes_go_on_with_another_number(
    processes: int, recipe: Path, one: Path, split: Path, tmp_path: Path
) -> None:
    out = as_after_its_first_checkpoint(split, tmp_path / "run")
    if processes == 1:
        alone(recipe, out, *SPLIT[1::2], resume=True)
    else:
        run(processes, recipe, out, *SPLIT, "--resume")
    assert_same_losses(out, split)
    for name, tensor in weights(split).items():
        if name.endswith("weight"):  # Adam makes noise of biases without a gradient
            torch.testing.assert_close(weights(out)[name], tensor, rtol=0, atol=2e-3)
    assert main(["average", str(out), "--last", "2", "-o", str(tmp_path / "bundle")]) == 0
    assert load_weights(load_bundle(tmp_path / "bundle")).keys() == weights(split).keys()


def test_an_update_of_too_few_pairs_gives_the_others_something_to_do(tmp_path: Path) -> None:
    pairs = reversal_pairs(40, 5)
    store = store_in_memory(pairs, Tokenizer.train([side for pair in pairs for side in pair], 380, tmp_path))
    sampler = make_sampler(store["source"].lengths, store["target"].lengths, 10, 3, store.corpora, None)
    feed = Feed(store, sampler, PairPacking(store, 1, 2), 1, "cpu", 4, 5, equal=True)
    idle = [update.parts for update in islice(feed, 20) if update.parts[0].labels.max() < 0]
    assert idle and all(len(parts) == 1 for parts in idle)
    feed.close()


def test_layers_that_compute_twice_have_the_same_gradients() -> None:
    gradients = []
    for twice in (False, True):
        model = build(tiny_config(dropout=0.3)).train()
        if twice:
            recompute_layers(model)
        torch.manual_seed(3)
        layout = SequenceLayout.from_lengths([3, 5])
        ids = torch.arange(8)
        model(ids, layout, ids, layout).logsumexp(-1).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for once, again in zip(*gradients, strict=True):
        assert torch.equal(once, again)


def last_process(parent: int) -> int:
    ranks = children(parent)
    assert sorted(ranks) == [0, 1]
    return ranks[1]


@pytest.mark.slow
def test_a_mistake_is_said_once_and_ends_all(recipe: Path, tmp_path: Path) -> None:
    process = torchrun(2, "-m", "regard", *command(recipe, tmp_path / "run", "--set", "data.valid=nothing.{src,tgt}"))
    said = finished(process)
    assert process.returncode != 0
    assert said.count("nothing.src") == 1
    assert not (tmp_path / "run").exists()


# --- shares, without starting processes ---


SLOTS = PairSlots(src_tokens=128, tgt_tokens=96, pairs=12, max_length=40)


@pytest.mark.parametrize("slots", [None, SLOTS], ids=["batches", "slots"])
@pytest.mark.parametrize(("processes", "accumulate"), [(2, 2), (3, 3), (2, 4), (3, 1)])
def test_the_processes_share_out_every_update(
    tmp_path: Path, slots: PairSlots | None, processes: int, accumulate: int
) -> None:
    pairs = reversal_pairs(90, 5)
    lines = [side for pair in pairs for side in pair]
    store = store_in_memory(pairs, Tokenizer.train(lines, 380, tmp_path))
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
            assert sorted(sentences(found)) == sorted(sentences(expected.parts))  # tiles order each part by itself
        else:
            assert [part.tolist() for part in found] == [part.tolist() for part in expected.parts]
    assert feeds[0].epoch >= 2
    for feed in [whole, *feeds]:
        feed.close()


def feed_of(store, accumulate, slots, rank, processes) -> Feed:
    sampler = make_sampler(store["source"].lengths, store["target"].lengths, 70, 3, store.corpora, slots)
    return Feed(store, sampler, PairPacking(store, 1, 2, slots), accumulate, "cpu", rank, processes)


def sentences(parts: list[PairBatch]) -> list[list[int]]:
    found = []
    for part in parts:
        ends = np.cumsum(part.tgt_layout.lengths)[:-1]
        found += [each.tolist() for each in np.split(part.labels.numpy(), ends)]
    return found


def test_several_processes_take_the_fast_path_without_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.fast.has_triton", lambda: True)
    assert fast_path("auto", torch.device("cuda"), torch.bfloat16, 2, plain_path_field="train.shard") is None
    with pytest.raises(UserError, match=r"train\.fast must be auto or off, since train\.shard needs"):
        fast_path("slots", torch.device("cuda"), torch.bfloat16, 2, plain_path_field="train.shard")
    path = fast_path("auto", torch.device("cuda"), torch.bfloat16, 2)
    assert path is not None and path.attention and path.compile and not path.graph
    with pytest.raises(UserError, match=r"train\.fast: graph works with one process"):
        fast_path("slots,graph", torch.device("cuda"), torch.bfloat16, 2)


def test_a_named_gpu_is_not_for_several_processes() -> None:
    with pytest.raises(UserError, match=r"train\.device must be auto, cpu or cuda with several processes"):
        own_device("cuda:1", 0)


def test_one_process_has_nobody_to_ask() -> None:
    ranks, parameter = Ranks(), torch.zeros(3, requires_grad=True)
    assert ranks.run_on_first(lambda: 5) == 5
    assert ranks.broadcast({"a": 1}) == {"a": 1}
    assert ranks.agree([1.5], True) == ([1.5], True)
    ranks.sum_gradients([parameter])
    assert parameter.grad is None
