"""`regard models`, and --from and --to, which choose among them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.builtin import builtin_models
from regard.bundle import add_facts, find_bundle, load_bundle
from regard.catalogue import ListedModel, list_models
from regard.cli import main
from regard.cli.models import _scores, _table
from regard.files import read_json, write_manifest
from tests.commands import fails

GOLDEN = Path(__file__).parent / "golden" / "bundle-1"
KINDS = {"news-2013": 21.7, "news-2014": 22.5, "talks-2014": 30.0}  # test set -> BLEU


def copy_model(folder: Path, source: str, target: str) -> Path:
    """The golden bundle with other languages."""
    shutil.copytree(GOLDEN, folder)
    settings = read_json(folder / "config.json") | {"source": source, "target": target}
    (folder / "config.json").write_text(json.dumps(settings))
    write_manifest(folder, format=1)
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run, a bundle and other things, and a cache with one model."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    copy_model(tmp_path / "cache" / "models" / "small-nl", "nl", "sv")
    work = tmp_path / "work"
    run = copy_model(work / "runs" / "fr-it" / "model", "fr", "it")
    (run.parent / "metrics.jsonl").touch()
    copy_model(work / "mine", "de", "nl")
    copy_model(work / ".hidden" / "one", "fr", "it")
    (work / "other").mkdir()
    (work / "other" / "config.json").write_text("{}")  # not of Regard
    monkeypatch.chdir(work)
    return work


def shown(model: ListedModel) -> str:
    return _scores(model).replace("\0", " ")


def test_scores_continue_below_themselves_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("news", "talks", "europarl", "multi30k", "tatoeba", "software")
    sets = {kind: {"metrics": {"bleu": {"name": "BLEU", "score": 20.0 + n}}} for n, kind in enumerate(kinds)}
    bundle = SimpleNamespace(facts={"scores": sets}, task="translate", pairs=(("en", "de"),))
    monkeypatch.setattr(ListedModel, "size", 5_000_000)
    model = ListedModel("local", "x", Path("x"), bundle)
    [header, whole] = _table([model])
    start = header.index("scores")
    for width in (70, 90):
        lines = _table([model], width)[1:]
        assert len(lines) > 1 and max(map(len, lines)) <= width
        assert {line[:start].strip() for line in lines[1:]} == {""}
        assert " ".join([lines[0], *(line.strip() for line in lines[1:])]) == whole
        assert not any(line.endswith(kinds) for line in lines)
    below = _table([model], 64)[1:]
    assert below[0] == whole[:start].rstrip() and below[1].startswith("  BLEU: ")


def test_without_a_test_set_the_validation_stands_for_it() -> None:
    metrics = {"bits_per_byte": {"name": "bits per byte", "score": 1.5372}}
    bundle = SimpleNamespace(facts={"valid": {"metrics": metrics}})
    model = ListedModel("local", "x", Path("x"), bundle)
    assert model.scores == {"valid": metrics}
    assert shown(model) == "bits per byte 1.537 (validation set)"
    bundle.facts["test"] = {"metrics": {"bleu": {"name": "BLEU", "score": 21.34}}}
    assert shown(model) == "BLEU 21.3 (test set)"


def test_all_places_are_listed_with_languages_size_and_scores(places: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metric = {"name": "BLEU", "score": 32.49, "confidence": 1.2, "signature": "s"}
    sets = {name: {"sentences": 1, "metrics": {"bleu": metric | {"score": score}}} for name, score in KINDS.items()}
    add_facts(places / "runs" / "fr-it" / "model", {"scores": sets, "checks": {"all": {"passed": 3, "lines": 4}}})
    add_facts(places / "mine", {"test": {"metrics": {"bleu": metric}}})
    assert main(["models"]) == 0
    rows = {line.split()[0]: line for line in capfd.readouterr().out.splitlines()}
    assert list(rows) == ["model", *builtin_models(), "small-nl", "mine", "runs/fr-it"]
    assert "built-in  English → German" in rows["en-de"]
    assert "18.9 MB" in rows["en-de"]
    assert "BLEU: europarl " in rows["en-de"]
    assert "cached    Dutch → Swedish" in rows["small-nl"]
    assert rows["small-nl"].endswith("not measured")
    assert rows["mine"].endswith("BLEU 32.5 (test set)")
    assert "local     French → Italian" in rows["runs/fr-it"]
    assert rows["runs/fr-it"].endswith("BLEU: news 21.7 to 22.5, talks 30.0; checks 75%")
    for model in list_models():
        assert find_bundle(model.name).resolve() == model.folder.resolve()


def test_json_has_every_score(places: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "mine"]) == 0
    listed = {one["model"]: one for one in json.loads(capfd.readouterr().out)}
    assert list(listed) == [*builtin_models(), "small-nl", "mine"]
    scores = load_bundle(find_bundle("en-de")).facts["scores"]
    assert listed["en-de"]["scores"].keys() == scores.keys()
    assert listed["en-de"]["scores"]["tatoeba-test"]["bleu"] == scores["tatoeba-test"]["metrics"]["bleu"]
    assert (listed["mine"]["source"], listed["mine"]["target"], listed["mine"]["place"]) == ("de", "nl", "local")
    files = [file for file in (places / "mine").rglob("*") if file.is_file()]
    assert listed["mine"]["bytes"] == sum(file.stat().st_size for file in files)


def test_a_model_that_cannot_be_read_is_listed_with_the_reason(places: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (places / "mine" / "config.json").write_text('{"format": 99}')
    assert main(["models"]) == 0
    assert "mine" in (out := capfd.readouterr().out)
    assert "cannot be read: mine: bundle format must be at most" in out
    assert "there is no such folder" in fails(capfd, "models", "nowhere")


@pytest.mark.parametrize(
    ("options", "model"),
    [
        (["--from", "nl", "--to", "sv"], "small-nl"),
        (["--from", "FR"], "runs/fr-it"),
        (["--to", "nl"], "mine"),
    ],
)
def test_languages_choose_the_model(
    places: Path, capfd: pytest.CaptureFixture[str], options: list[str], model: str
) -> None:
    assert main(["translate", "--device", "cpu", "-m", model, "a b c"]) == 0
    expected = capfd.readouterr().out
    assert main(["translate", "--device", "cpu", *options, "a b c"]) == 0
    assert capfd.readouterr().out == expected == "c b a\n"


def test_a_built_in_model_comes_before_a_local_one(places: Path, capfd: pytest.CaptureFixture[str]) -> None:
    copy_model(places / "another", "de", "en")
    assert main(["translate", "--from", "de", "--to", "en", "Guten Morgen!"]) == 0
    assert capfd.readouterr().out.startswith("Good morning")  # the local one would turn the words around


def test_languages_that_choose_no_model_are_refused(places: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = fails(capfd, "translate", "--from", "ja", "--to", "en", "x")
    assert "--from ja --to en: there is no such model" in said
    assert "en → de, de → en, nl → sv, de → nl, fr → it" in said
    said = fails(capfd, "translate", "--from", "en", "-m", "de-en", "x")
    assert "--from en: -m de-en translates from de to en" in said
    copy_model(places / "second", "fr", "it")
    said = fails(capfd, "translate", "--from", "fr", "x")
    assert "--from fr fits several models; choose one: -m second (fr → it), -m runs/fr-it (fr → it)" in said


def test_input_in_another_language_is_noticed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(copy_model(tmp_path / "model", "en", "de"))
    german = "Wo ist der nächste Bahnhof, bitte? Ich komme aus Köln."
    file = tmp_path / "page.html"
    file.write_text(f"<p>{german}</p>")
    for arguments in ([german, german], ["--follow", "--engine", "torch", german], ["-i", str(file)]):
        assert main(["translate", "--device", "cpu", "-m", model, *arguments]) == 0
        lines = capfd.readouterr().err.splitlines()
        assert [line for line in lines if not line.startswith("translating:")] == [  # progress, on a slow machine
            "regard: the input looks like German (99% sure), but the model translates from English; "
            "for German to English use --from de --to en"
        ]
    assert main(["translate", "--device", "cpu", "-m", model, "Where is the nearest station, please?"]) == 0
    assert capfd.readouterr().err == ""
