"""`regard explain` as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import regard
from regard.bundle import Bundle
from regard.cli import main
from regard.explain.encoder_explanation import EncoderExplanation
from regard.explain.explanation import EXAMPLE, Explanation


def test_the_animal_is_the_opening_example(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "-m", str(bundle.folder), "-o", str(page)]) == 0
    assert EXAMPLE == "The animal didn't cross the street because it was too tired"
    explanation = regard.load(bundle.folder, device="cpu").explain()
    assert explanation.text == EXAMPLE
    assert capsys.readouterr().out == explanation.translation + "\n"
    assert page.read_text(encoding="utf-8") == explanation.html()


def test_json_is_the_explanation_and_nothing_else(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a b c", "-m", str(bundle.folder), "--json", "--beam", "2", "--top", "3"]) == 0
    explanation = Explanation.from_json(json.loads(capsys.readouterr().out))
    assert explanation == regard.load(bundle.folder, device="cpu").explain("a b c", beam=2, top=3)
    assert explanation.model.beam == 2 and len(explanation.steps[0].candidates) == 3


def test_targets_prefixes_and_forced_words_arrive(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["explain", "a b c", "-m", str(bundle.folder), "--json"]
    assert main([*call, "--target", "c b a"]) == 0
    assert json.loads(capsys.readouterr().out)["translation"] == "c b a"
    assert main([*call, "--prefix", "die Katze"]) == 0
    assert json.loads(capsys.readouterr().out)["translation"].startswith("die Katze")
    assert main([*call, "--force", "2=Hund", "--force", "1=der"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["words"][:2] == ["der", "Hund"]


def test_options_of_figures_arrive(bundle: Bundle, tmp_path: Path) -> None:
    call = ["explain", "a b c", "-m", str(bundle.folder)]
    explanation = regard.load(bundle.folder, device="cpu").explain("a b c")
    given = ["--attention", "cross", "--layer", "2", "--head", "1", "--head", "3", "--pieces"]
    assert main([*call, "-o", str(tmp_path / "a.svg"), *given]) == 0
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == explanation.figure("cross", 2, [1, 3], pieces=True)
    assert main([*call, "-o", str(tmp_path / "b.svg"), "--word", "b"]) == 0
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == explanation.figure(word="b")
    assert main([*call, "-o", str(tmp_path / "c.png")]) == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "explain needs -o FILE"),
        (["-o", "page.txt"], "page.txt: must end in .html, .svg, .png or .json"),
        (["-o", "nowhere/page.html"], "the folder nowhere does not exist"),
        (["-o", "page.html", "--layer", "1"], "page.html: --layer: for figures only"),
        (["--json", "--head", "1"], "--head: for figures only"),
        (["--json", "--force", "Hund"], "--force must be N=WORD, such as 2=Hund, but is 'Hund'"),
        (["--json", "--force", "2="], "--force must be N=WORD"),
        (["--json", "--force", "2=a", "--force", "2=b"], "--force names word 2 twice"),
        (["--json", "--force", "99=a"], "word 99 cannot be forced"),
        (["--json", "--target", "a", "--prefix", "b"], "leave out prefix and force"),
        (["--json", "--top", "0"], "top must be at least 1"),
        (["--json", "--beam", "0"], "beam must be at least 1"),
        (["-o", "figure.svg", "--layer", "9"], "layer must be between 1 and 2, but is 9"),
        (["-o", "figure.svg", "--head", "9"], "head must be between 1 and 4, but is 9"),
        (["-o", "figure.svg", "--word", "x"], "word must be one of a, b, </s>, but is 'x'"),
        (["-o", "figure.svg", "--attention", "side"], "invalid choice: 'side'"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "a b", "-m", str(bundle.folder), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("regard: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_model_and_an_empty_text_are_named(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a b", "-m", "nowhere", "--json"]) == 2
    assert "nowhere: there is no such model" in capsys.readouterr().err
    assert main(["explain", "  ", "-m", str(bundle.folder), "--json"]) == 2
    assert "no text to explain" in capsys.readouterr().err


def test_encoders_are_explained_like_translations(
    encoder_models: dict[str, tuple[Path, Bundle]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(encoder_models["classify"][1].folder)
    loaded = regard.load(folder, device="cpu")
    assert main(["explain", "we saw a dog", "-m", folder, "-o", str(tmp_path / "page.html")]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("animal 0.") and "(with the words hidden 0." in first and second.split()[1] == "dog"
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == loaded.explain("we saw a dog").html()
    assert main(["explain", "a cat\twe saw tea", "-m", folder, "--json", "--label", "food", "--top", "2"]) == 0
    found = EncoderExplanation.from_json(json.loads(capsys.readouterr().out))
    assert found == loaded.explain(("a cat", "we saw tea"), label="food", top=2)
    figure = ["-o", str(tmp_path / "a.svg"), "--layer", "2", "--head", "1", "--word", "dog"]
    assert main(["explain", "we saw a dog", "-m", folder, *figure]) == 0
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert svg == loaded.explain("we saw a dog").figure(layer=2, heads=[1], word="dog")
    assert "Encoder self-attention, layer 2 of 2, head 1" in svg
    loaded.explain("we saw a dog").save(tmp_path / "data.json")
    assert EncoderExplanation.from_json(json.loads((tmp_path / "data.json").read_text())).text == "we saw a dog"


def test_every_task_prints_its_answer(
    encoder_models: dict[str, tuple[Path, Bundle]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = {"tag": "we saw a dog", "fill": "we saw a ___", "embed": "a cat\ta dog"}
    printed = {}
    for task, text in texts.items():
        output = str(tmp_path / f"{task}.html")
        assert main(["explain", text, "-m", str(encoder_models[task][1].folder), "-o", output]) == 0
        printed[task] = capsys.readouterr().out.splitlines()
    tagged = regard.load(encoder_models["tag"][1].folder, device="cpu").tag("we saw a dog")
    assert [line.split()[:2] for line in printed["tag"][:4]] == [
        list(pair) for pair in zip(tagged.words, tagged.tags, strict=True)
    ]
    assert printed["fill"][0].startswith("[MASK]: ") and printed["embed"][0].startswith("cosine ")
    long = "we saw a dog " * 30
    assert main(["explain", long, "-m", str(encoder_models["tag"][1].folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert "note: the text is longer than the model reads at once: this is part 1 of " in captured.err


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        (
            "classify",
            ["--json", "--beam", "2"],
            "--beam is for models of the task translate, but this one is for classify",
        ),
        ("classify", ["--json", "--force", "1=a"], "--force is for models of the task translate"),
        ("tag", ["--json", "--token", "a"], "--token is for models of the task fill, but this one is for tag"),
        ("fill", ["--json", "--window", "1"], "--window is for models of the task classify or embed"),
        ("translate", ["--json", "--label", "a"], "--label is for models of the task classify or tag"),
        ("classify", ["--json", "--label", "sport"], "--label must be one that this model has: animal, food, other"),
        ("tag", ["--json", "--at", "9"], "--at must be between 1 and 2, the number of words, but is 9"),
        (
            "classify",
            ["-o", "a.svg", "--attention", "cross"],
            "--attention must be encoder for a model without a decoder",
        ),
        ("classify", ["-o", "a.svg", "--layer", "9"], "layer must be between 1 and 2, but is 9"),
        ("fill", ["--json"], "must have a blank"),
    ],
)
def test_mistakes_about_encoders_get_one_line_and_exit_code_2(
    bundle: Bundle,
    encoder_models: dict[str, tuple[Path, Bundle]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    task: str,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = (bundle if task == "translate" else encoder_models[task][1]).folder
    assert main(["explain", "a b", "-m", str(folder), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err
    assert list(tmp_path.iterdir()) == []
