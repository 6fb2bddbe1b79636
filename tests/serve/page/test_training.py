"""The training view: what is read from a run folder, and how the page follows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from regard.errors import UserError
from regard.recipe import recipe_from_dict
from regard.serve.watch import Watch
from regard.serve.web.schemas import TrainingView
from regard.training.metrics import read_metrics
from tests.serve.page.conftest import open_page
from tests.serve.server import ROOT, Running, running
from tests.tiny import write_recipe

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SAMPLE = {"source": "a b", "reference": "b a", "translation": "a a"}


def train_record(step: int) -> dict[str, Any]:
    return {
        "kind": "train", "step": step, "epoch": step / 20, "elapsed": step * 0.5, "loss": 6 - step / 50, "nll": 5 - step / 50,
        "lr": step * 1e-4, "grad_norm": 1.0, "tokens_per_second": 1000.0 + step,
    }  # fmt: skip


def valid_record(step: int, bleu: float, translation: str, best: bool = True) -> dict[str, Any]:
    return {
        "kind": "valid", "step": step, "elapsed": step * 0.5, "loss": 4 - step / 50, "perplexity": 9.0, "bleu": bleu,
        "chrf": bleu + 20,
        "samples": [SAMPLE | {"translation": translation}], "best": best,
    }  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder as training leaves it after its first ten steps, of forty."""
    folder = tmp_path / "my run"
    write_recipe(folder, steps=40)
    append(folder, train_record(5), train_record(10), valid_record(10, 7.5, "a a"))
    return folder


def append(folder: Path, *records: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_a_run_is_read_as_it_was_written(run: Path) -> None:
    append(run, train_record(15), valid_record(20, 11.0, "b a"), valid_record(30, 9.0, "b a", best=False))
    _, view = Watch(run).view()
    assert (view["name"], view["source"], view["target"]) == ("my run", "src", "tgt")
    assert view["curves"]["training"] == [[5, 4.9], [10, 4.8], [15, 4.7]]
    assert view["scores"] == [
        {"name": "BLEU", "digits": 1, "points": [[10, 7.5], [20, 11.0], [30, 9.0]], "best": 11.0},
        {"name": "chrF", "digits": 1, "points": [[10, 27.5], [20, 31.0], [30, 29.0]], "best": 31.0},
    ]
    assert (view["arrow"], view["loss_title"]) == ("→", "Loss per token")
    assert view["curves"]["tokens_per_second"] == [[5, 1005], [10, 1010], [15, 1015]]
    assert view["best"]["step"] == 20
    assert view["latest"]["step"] == 30 and view["latest_train"]["step"] == 15
    assert view["done"] == 30 / 40 and not view["finished"]
    assert view["samples"] == [
        {
            "source": "a b",
            "reference": "b a",
            "changes": [{"step": 10, "translation": "a a"}, {"step": 20, "translation": "b a"}],
        }
    ]


def test_a_folder_without_measurements_and_half_a_line_are_no_problem(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')  # it is being written
    assert Watch(run).view()[1]["records"] == 3
    (run / "metrics.jsonl").unlink()
    _, view = Watch(run).view()
    assert (view["records"], view["latest"], view["updated"], view["problem"]) == (0, None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '{"kind": "train"}',
        '{"kind": "train", "step": "x"}',
        '{"kind": "test", "name": 1}',
        '{"kind": "test", "name": "x", "scores": {"metrics": [1]}}',
    ],
)
def test_a_damaged_file_is_said_and_not_a_failure(run: Path, line: str) -> None:
    watch = Watch(run)
    (run / "metrics.jsonl").write_text(f"{line}\n", encoding="utf-8")
    _, view = watch.view()
    assert "metrics.jsonl" in view["problem"] and str(run) not in view["problem"]


def test_a_run_that_vanishes_is_said_and_not_a_failure(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(run)
    before = watch.view()[0]

    def vanish(path: Path) -> list[dict[str, object]]:
        shutil.rmtree(run)
        return read_metrics(path)

    (run / "metrics.jsonl").write_text("", encoding="utf-8")  # so that it is read again
    monkeypatch.setattr("regard.serve.watch.read_metrics", vanish)
    version, view = watch.view()
    assert view["problem"] == "metrics.jsonl: cannot be read (No such file or directory)"
    assert view["updated"] is None and version != before
    _, view = watch.view()
    assert view["problem"] == "recipe.toml: there is no such recipe file"


def test_what_is_no_run_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run folder \(recipe.toml is missing\); pass the --out"):
        Watch(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "regard", "serve", "--run", str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == f"regard: --run {tmp_path}: is not a run folder (recipe.toml is missing); pass the --out of regard train\n"
    )


@pytest.fixture
def watched(run: Path) -> Iterator[Running]:
    """A server without a model that watches the run."""
    code = f"import sys; sys.argv[1:] = ['serve', '--run', {str(run)!r}, '--port', '0']"
    with running(code=code) as server:
        yield server


def test_an_unchanged_run_is_not_sent_again(watched: Running, run: Path) -> None:
    with watched.client() as client:
        first = client.get("/training")
        TrainingView.model_validate(first.json())  # what OpenAPI promises
        tag = first.headers["etag"]
        assert client.get("/training", headers={"if-none-match": tag}).status_code == 304
        append(run, train_record(15))
        again = client.get("/training", headers={"if-none-match": tag})
        assert again.status_code == 200 and again.json()["latest_train"]["step"] == 15
        assert (
            "no translation model is served"
            in client.post("/translate", json={"q": "a", "target": "de"}).json()["error"]
        )


def test_the_page_follows_a_run_as_it_goes_on(browser: Browser, watched: Running, run: Path) -> None:
    with open_page(browser, watched.url) as page:
        page.locator(".run-tile", has_text="Step").locator("strong", has_text="10").wait_for()
        assert page.get_by_role("navigation", name="views").get_by_role("link").all_inner_texts() == ["Training"]
        assert page.locator("polyline.one").first.get_attribute("points").count(",") == 2
        assert page.get_by_label("training progress").get_attribute("value") == "0.25"
        assert page.locator("img, svg[role=img]").count() == 4
        append(run, train_record(15), train_record(20), valid_record(20, 31.4, "b a"))
        page.locator(".run-tile", has_text="BLEU").locator("strong", has_text="31.4").wait_for()
        assert page.locator("polyline.one").first.get_attribute("points").count(",") == 4
        assert page.locator(".run-sample .newest dd").inner_text() == "b a"
        assert page.locator(".run-sample .older dd").inner_text() == "a a"
        page.locator(".run-stage svg").first.hover()
        page.locator(".run-stage .mark text", has_text="training 4.").first.wait_for()
        (run / "report.html").write_text("done", encoding="utf-8")
        page.locator(".run-status", has_text="finished").wait_for()


@pytest.mark.parametrize(
    ("task", "fields", "name", "score", "tile", "chart"),
    [
        ("classify", {}, "of classify", {"accuracy": 87.456, "macro_f1": 80.1}, ("Accuracy", "87.46"), "Validation scores"),
        ("tag", {}, "of tag", {"f1": 51.2}, ("F1", "51.20"), "Validation F1"),
        ("classify", {}, "of classify", {"spearman": -12.0}, ("Spearman", "-12.00"), "Validation Spearman"),
        ("embed", {"source": "en", "target": "de"}, "en ↔ de", {"retrieval": 90.25}, ("Retrieval accuracy", "90.25"),
         "Validation retrieval accuracy"),
        ("generate", {}, "of generate", {"bits_per_byte": 1.8765}, ("Bits per byte", "1.877"), "Bits per byte"),
    ],
)  # fmt: skip
def test_a_run_of_any_task_shows_its_score(
    browser: Browser, tmp_path: Path, task: str, fields: dict[str, Any], name: str, score: dict[str, float],
    tile: tuple[str, str], chart: str,
) -> None:  # fmt: skip
    folder = tmp_path / f"of {task}"
    folder.mkdir()
    recipe = {"task": task, "data": {"train": "a.tsv", "valid": "b.tsv", **fields}, "train": {"steps": 40}}
    (folder / "recipe.toml").write_text(recipe_from_dict(recipe).to_toml(), encoding="utf-8")
    append(folder, train_record(10), {"kind": "valid", "step": 10, "loss": 0.7, "best": True, **score})
    with running(code=f"import sys; sys.argv[1:] = ['serve', '--run', {str(folder)!r}, '--port', '0']") as server:
        with open_page(browser, server.url) as page:
            page.locator(".run-tile", has_text=tile[0]).locator("strong", has_text=tile[1]).wait_for()
            assert page.locator(".run-head h2").inner_text() == name
            titles = page.locator(".run-chart h3").all_inner_texts()
        loss = "Loss per token" if task == "generate" else "Loss"
        assert titles == [loss, chart, "Learning rate", "Tokens per second"]
        TrainingView.model_validate(server.get("/training").json())


@pytest.mark.slow
def test_a_real_run_is_followed_from_its_beginning_to_its_model(tmp_path: Path) -> None:
    """`regard train`, then `regard serve --run` without -m, which serves the run's own model."""
    recipe = write_recipe(tmp_path, steps=10, validate_every=5, save_every=5)
    out = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "regard", "train", str(recipe), "--out", str(out)],
        check=True, capture_output=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    with running(code=f"import sys; sys.argv[1:] = ['serve', '--run', {str(out)!r}, '--port', '0']") as server:
        view = server.get("/training").json()
        assert view["finished"] and view["done"] == 1 and view["problem"] is None
        assert view["curves"]["lr"] == [[one["step"], one["lr"]] for one in lines if one["kind"] == "train"]
        assert [one["code"] for one in server.get("/languages").json()] == ["src", "tgt"]
        assert server.post("/translate", json={"q": "a b", "source": "src", "target": "tgt"}).status_code == 200
