"""Language models in two processes: the losses of one, for conversations, LoRA, characters and `model.depth`; sharded runs that
stop and go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.bundle import load_bundle
from regard.training.checkpoint import list_checkpoints
from regard.training.sharded import is_sharded
from tests import chat_models
from tests.commands import together
from tests.tasks.test_language_models import losses, paragraphs
from tests.training.runs import quiet

pytestmark = pytest.mark.slow

TRAIN = (
    'steps = 6\nbatch_tokens = 300\nlog_every = 1\nlr = 5e-3\nwarmup = 2\noptimizer = "adamw"\ndevice = "cpu"\n'
    'precision = "fp32"\naverage = 1\nvalidate_every = 3\n'
)


def write_chats(folder: Path, **train: str) -> Path:
    """A recipe that fine-tunes on conversations."""
    _, bundle = chat_models.write_model(folder)
    for name, start in (("train", 0), ("valid", 30)):
        chats = [
            [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": "It is " + "so " * (n % 5)}]
            for n in range(start, start + 30)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    more = "".join(f"{name} = {value}\n" for name, value in train.items())
    path = folder / "recipe.toml"
    path.write_text(
        'task = "generate"\n[data]\ntrain = "train.jsonl"\nvalid = "valid.jsonl"\nmax_length = 64\n'
        f'[model]\npreset = "init"\n[train]\ninit = {json.dumps(str(bundle))}\n{TRAIN}{more}'
    )
    return path


def write_characters(folder: Path) -> Path:
    """A recipe of characters, whose shape is one number."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in (("train", 1), ("valid", 2)):
        (folder / f"{name}.txt").write_text("\n\n".join(paragraphs(20, seed)))
    path = folder / "recipe.toml"
    path.write_text(
        'task = "generate"\n[data]\ntrain = "train.txt"\nvalid = "valid.txt"\nmax_length = 64\n'
        '[tokenizer]\nunit = "character"\ncharacter_coverage = 1.0\n'
        f'[model]\npreset = "llama-small"\ndepth = 1\n[train]\n{TRAIN}'
    )
    return path


@pytest.mark.parametrize("kind", ["lora on chats", "characters and depth"])
def test_two_processes_have_the_losses_of_one(kind: str, tmp_path: Path) -> None:
    recipe = write_characters(tmp_path) if kind.startswith("characters") else write_chats(tmp_path, lora="2")
    quiet(recipe, tmp_path / "one")
    codes, said = together(2, "train", str(recipe), "--out", str(tmp_path / "two"))
    assert codes == [0, 0], said
    for values in ("train", "valid"):
        assert losses(tmp_path / "two", values) == pytest.approx(losses(tmp_path / "one", values), rel=1e-4)
    assert len(losses(tmp_path / "two")) == 6 and losses(tmp_path / "two")[-1] < losses(tmp_path / "two")[0]
    if kind.startswith("lora"):
        assert (tmp_path / "two" / "adapter" / "adapter_config.json").is_file()
    else:
        config = load_bundle(tmp_path / "two" / "model").config
        assert (config.decoder_layers, config.d_model, config.num_heads) == (1, 64, 1)


@pytest.mark.parametrize("kind", ["chats", "characters"])
def test_a_sharded_run_stops_goes_on_and_ends_with_a_model(kind: str, tmp_path: Path) -> None:
    recipe = write_characters(tmp_path) if kind == "characters" else write_chats(tmp_path)
    quiet(recipe, tmp_path / "one")
    words = ["train", str(recipe), "--out", str(tmp_path / "two"), "--set", "train.shard=true"]
    codes, said = together(2, *words, "--steps", "3")
    assert codes == [0, 0], said
    assert is_sharded(list_checkpoints(tmp_path / "two" / "checkpoints")[-1])
    codes, said = together(2, *words, "--resume")
    assert codes == [0, 0] and "resuming from step 3" in said[0], said
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert load_bundle(tmp_path / "two" / "model").facts["steps"] == 6
