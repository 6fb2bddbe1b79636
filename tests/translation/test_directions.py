"""One model for several directions: a toy language in capitals, in Greek letters, and as it is."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.api import Model
from regard.bundle import find_bundle, load_bundle
from regard.cli import main
from regard.data.corpus import Record
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.explain.explainer import Explainer
from regard.generate.options import SearchOptions
from regard.recipe import Recipe, recipe_from_dict
from regard.tasks import TASKS
from regard.training.prepare import choose_evaluation_sets, find_corpora
from regard.translation.directions import choose_direction
from regard.translation.protect import encode_records
from tests.commands import fails
from tests.toy_directions import PAIRS, made, values


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("directions")
    regard.train(recipe_from_dict(values(folder)), out=folder / "run", progress=False)
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return regard.load(run)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command; what it prints."""

    def run(*arguments: str) -> str:
        capfd.readouterr()
        assert main(arguments) == 0
        return capfd.readouterr().out

    return run


# --- what the model has learnt ---


def test_one_model_learns_three_directions_and_obeys_the_target(model: Model) -> None:
    for source, target in PAIRS:
        sources, expected = zip(*made(30, 3, source, target), strict=True)
        found = model.translate(list(sources), target=target)
        assert sum(map(str.__eq__, found, expected)) >= 28


def test_a_batch_of_mixed_directions_gives_what_each_gives_alone(model: Model) -> None:
    texts = ["a b c", "A B C", "p o", "d", "E F G H"]
    targets = ["gre", "low", "up", "gre", "low"]
    together = model.translate(texts, target=targets)
    assert together == [model.translate(text, target=target) for text, target in zip(texts, targets, strict=True)]
    assert together == ["α β γ", "a b c", "P O", "δ", "e f g h"]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2-fp32"])
def test_engines_translate_sentences_of_several_directions_in_one_batch(run: Path, engine: str) -> None:
    loaded = regard.load(run, engine=engine)
    tokenizer = loaded.bundle.tokenizer
    ids = [[*tokenizer.target_tag(target), *tokenizer.encode("a b")] for target in ("up", "gre")]
    found = loaded.engine.translate(ids, SearchOptions(beam=2))
    assert [tokenizer.decode(best.ids) for best, *_ in found] == ["A B", "α β"]


def test_no_text_becomes_a_tag(model: Model) -> None:
    tokenizer = model.bundle.tokenizer
    assert tokenizer.targets == ("up", "gre", "low")
    tags = set(tokenizer.tag_ids)
    assert len(tags) >= 3
    for text in ("<tag0>", "<tag1> a b", "<gre>", ">>gre<< a"):
        side = model.toward("up")._translator(model.options).text_side
        [ids] = side.reader.encode([text])
        assert ids[0] == tokenizer.tag_ids[0] and not tags & set(ids[1:])
        assert tokenizer.decode(ids) == text


def test_no_translation_has_a_tag(run: Path) -> None:
    loaded = regard.load(run, engine="torch")
    tags = set(loaded.bundle.tokenizer.tag_ids)
    assert len(tags) >= 3 and tags <= set(loaded.engine.forbidden)  # type: ignore[attr-defined]


def test_a_long_line_has_the_tag_in_every_segment(model: Model) -> None:
    text = " ".join("abcdefgh" * 4)
    side = model.toward("gre")._translator(model.options).text_side
    [segments] = side.reader.cut([text])
    encoded = side.reader.encode([segment.text for segment in segments])
    assert len(encoded) > 1 and all(ids[0] == side.reader.tag[0] and len(ids) <= 16 for ids in encoded)


# --- choosing a direction ---


def test_an_unknown_direction_is_refused_with_those_that_there_are(model: Model) -> None:
    for given in ({"target": "de"}, {"target": "gre", "source": "up"}):
        with pytest.raises(UserError, match="this model translates low → up, low → gre, up → low"):
            model.translate("a b", **given)
    with pytest.raises(
        UserError, match=r'name the target language with --to or, in Python, with model\.toward\("up"\)'
    ):
        model.translate("a b")
    with pytest.raises(UserError, match="choose one with `toward`"):
        next(iter(model.stream(["a"])))


def test_the_language_of_the_text_decides_where_only_it_can() -> None:
    directions = [("en", "fr"), ("fr", "en"), ("en", "de")]
    assert choose_direction(directions, None, None, ["Le chat dort sur la table de la cuisine."]) == ("fr", "en")
    assert choose_direction(directions, None, "de", ["whatever"]) == ("en", "de")
    with pytest.raises(UserError, match="translates en → fr, en → de"):
        choose_direction(directions, None, None, ["The cat sleeps on the kitchen table."])
    with pytest.raises(UserError, match="name the target language"):
        choose_direction(directions[:2], None, None, ["1990"])
    assert choose_direction([("en", "de"), ("fr", "de")], None, "de", ["1990"]) == ("en", "de")


@pytest.mark.parametrize("other", ["en", "da"])
def test_codes_of_one_language_count_as_the_same(other: str) -> None:
    """The classifier says "no" of all Norwegian."""
    directions = [(other, "nb"), ("nb", other)]
    text = "Katten sover på kjøkkenbordet hver eneste dag."
    assert choose_direction(directions, None, None, [text]) == ("nb", other)


def test_blank_texts_need_no_direction(model: Model) -> None:
    assert [model.translate([]), model.nbest([], 1), model.align([]), model.score([], [])] == [[]] * 4
    assert model.translate(["", " \t"]) == ["", ""] and model.translate("") == "" and [*model.follow("")] == []
    assert model.translate(["", "a b"], target=["up", "gre"]) == ["", "α β"]
    for ambiguous in (["", "a b"], ["1990"]):
        with pytest.raises(UserError, match="name the target language"):
            model.translate(ambiguous)
    with pytest.raises(UserError, match="to de: there is no such direction"):
        model.translate([], target="de")
    with pytest.raises(UserError, match="name the target language"):
        model.score([""], ["A B"])


@pytest.mark.parametrize(("name", "content"), [("empty.md", ""), ("blank.txt", " \n\n"), ("page.html", "<p> </p>\n")])
def test_documents_without_text_need_no_direction(
    model: Model, run: Path, tmp_path: Path, call: Callable[..., str], name: str, content: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    written = model.translate_file(path)
    assert written.name == f"{path.stem}.up{path.suffix}" and written.read_text(encoding="utf-8") == content
    assert call("translate", "-m", str(run), "-i", str(path)) == content.replace(" \n\n", "\n\n")


def test_only_input_that_is_known_to_be_blank_needs_no_direction(
    run: Path, tmp_path: Path, monkeypatch: Any, call: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("translate", "-m", str(run), "", " ") == "\n\n"
    (tmp_path / "text").write_text("\n\n1990\n", encoding="utf-8")
    assert "name the target language" in fails(capfd, "translate", "-m", str(run), "-i", str(tmp_path / "text"))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))  # more may come
    assert "name the target language" in fails(capfd, "translate", "-m", str(run))


def test_a_model_for_one_direction_takes_its_own_target_only() -> None:
    golden = regard.load("tests/golden/bundle-1")
    assert golden.translate("a b c", target="tgt") == golden.translate("a b c")
    with pytest.raises(UserError, match="to fr: there is no such direction; this model translates src → tgt"):
        golden.translate("a b c", target="fr")


# --- everything else that a model does ---


def test_scores_follow_the_direction(model: Model) -> None:
    up, greek = (model.toward(target).score(["a b"], ["A B"])[0] for target in ("up", "gre"))
    assert up > -1 and greek < up - 5


def test_alignments_link_words_and_never_the_tag(model: Model) -> None:
    """Each word with the one in its place, mostly: which ones a short training leaves wrong differs from CPU to CPU."""
    rows = made(12, 2, "low", "gre")
    found = model.toward("gre").align(rows)
    for aligned, (source, _) in zip(found, rows, strict=True):
        assert [slice_of(span, source) for span in aligned.source] == source.split()
    assert_straight([aligned.pairs for aligned in found], rows)
    results = model.nbest([source for source, _ in rows], 1, target="gre", alignment=True)
    assert [result.source_words for result in results] == [tuple(source.split()) for source, _ in rows]
    assert_straight([result.translations[0].alignment for result in results], rows)


def assert_straight(links: Sequence[Sequence[tuple[int, int]]], rows: Sequence[tuple[str, str]]) -> None:
    words = sum(len(source.split()) for source, _ in rows)
    straight = sum(one == other for some in links for one, other in some)
    assert straight > 0.8 * words and straight > 0.8 * sum(map(len, links))


def slice_of(span: tuple[int, int], text: str) -> str:
    return text[slice(*span)]


def test_an_explanation_shows_the_tag_as_a_language(model: Model) -> None:
    found = model.toward("gre").explain("a b")
    assert found.source.words[0] == "<gre>" and found.translation == "α β"
    assert found.alignment.links and {source for _, source in found.alignment.links} <= {1, 2}
    assert [row[0] for row in found.alignment.weights] == [0, 0]


def test_explanations_of_one_direction_load_the_weights_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = regard.load(run, engine="ctranslate2")
    explainers: list[Explainer] = []
    original = Explainer.explain

    def explain(self: Explainer, *arguments: Any, **options: Any) -> Any:
        explainers.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Explainer, "explain", explain)
    for _ in range(2):
        loaded.toward("gre").explain("a b")
    assert len(explainers) == 2 and explainers[0] is explainers[1]
    assert loaded.toward("gre") is loaded.toward("gre", "low") is loaded.toward("gre").toward("gre")
    assert loaded.toward("up").explain("a b").translation == "A B"


def test_alternatives_and_followed_translations(model: Model) -> None:
    assert [*model.toward("up").follow("a b c")][-1] == "A B C"
    assert model.toward("gre").alternatives("a b c", "α", k=1)[0].word == "β"


def test_documents(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "letter.md"
    path.write_text("# a b\n\nc *d*\n", encoding="utf-8")
    written = model.toward("up").translate_file(path)
    assert written.name == "letter.up.md" and written.read_text(encoding="utf-8") == "# A B\n\nC *D*\n"


def test_an_ensemble_translates_in_one_direction(run: Path) -> None:
    both = regard.load([run, run])
    assert both.translate("a b", target="gre") == "α β"


# --- commands ---


def test_commands_take_from_and_to(
    run: Path, tmp_path: Path, call: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    name = str(run)
    assert call("translate", "-m", name, "--to", "gre", "a b") == "α β\n"
    assert "--to xx: -m" in (said := fails(capfd, "translate", "-m", name, "--to", "xx", "a b")) and "low → gre" in said
    assert "--from up --to gre: -m" in fails(capfd, "translate", "-m", name, "--from", "up", "--to", "gre", "a b")
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text("a b\n", encoding="utf-8")
    reference.write_text("A B\n", encoding="utf-8")
    files = ("--source", str(source), "--reference", str(reference))
    found = json.loads(call("evaluate", "-m", name, "--to", "up", *files, "--json", "--bootstrap", "0"))
    assert found["metrics"]["chrf"]["score"] == 100
    assert float(call("score", "-m", name, "--to", "up", "--source", str(source), "--target", str(reference))) > -1
    shown = json.loads(call("explain", "-m", name, "--to", "gre", "a b", "--json"))
    assert shown["translation"] == "α β"
    hypothesis = ("--hypothesis", str(reference))
    compared = json.loads(call("compare", "-m", name, "--to", "up", *hypothesis, *files, "--json", "--bootstrap", "10"))
    assert [one["name"] for one in compared["systems"]] == [name, str(reference)]


def test_info_and_models_list_the_directions(run: Path, call: Callable[..., str]) -> None:
    assert json.loads(call("info", "-m", str(run), "--json"))["directions"] == [list(pair) for pair in PAIRS]
    assert "# low → up, low → gre, up → low" in call("info", "-m", str(run))
    assert "low → up, low → gre, up → low" in call("models", str(run.parent))


def test_distillation_takes_the_direction_from_the_labels(
    run: Path, tmp_path: Path, call: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("a b\nc\n", encoding="utf-8")
    out = str(tmp_path / "made.{low,gre}")
    call("augment", "--distill", "-m", str(run), "-i", str(tmp_path / "text"), "-o", out)
    assert (tmp_path / "made.gre").read_text(encoding="utf-8") == "α β\nγ\n"
    said = fails(
        capfd, "augment", "--distill", "-m", str(run), "-i", str(tmp_path / "text"), "-o", str(tmp_path / "x.tsv")
    )
    assert "must name its languages as {source,target}" in said


# --- training ---


def test_recipes_name_directions_corpus_by_corpus(tmp_path: Path) -> None:
    recipe = recipe_from_dict(values(tmp_path))
    assert recipe.data.directions == PAIRS and recipe.has_tags and recipe.name == "low-up+low-gre+up-low"
    again = recipe_from_dict(recipe.to_dict())
    assert again == recipe
    assert TASKS["translate"].describe(recipe) == "low → up, low → gre, up → low"
    of_one = recipe_from_dict(
        {**values(tmp_path), "data": {"source": "low", "target": "up", "train": "x.tsv", "valid": 1}}
    )
    assert not of_one.has_tags and "tag_targets" not in of_one.to_toml() and "source =" in of_one.to_toml()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"valid": [{"path": "x.tsv", "source": "gre"}]}, "data.valid: x.tsv must be of a direction of data.train"),
        ({"valid": []}, "data.valid must name at least one corpus, but is empty"),
        ({"source": "up", "target": "gre"}, "data.source and data.target must be a direction of data.train (low → up, low → gre, "),
        ({"valid": [{"path": "x.tsv", "weight": 2.0}]}, "data.valid: x.tsv must have no weight"),
        ({"train": [{"path": "x.tsv", "source": "a/b", "target": "c"}]}, "source of x.tsv must be a language code"),
        ({"train": [{"path": "x.tsv", "tagret": "c"}]}, "did you mean target"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    given = values(tmp_path)
    given["data"] |= change
    with pytest.raises(UserError, match=re.escape(said)):
        recipe_from_dict(given)


def test_directions_without_tags_are_refused(tmp_path: Path) -> None:
    given = values(tmp_path)
    given["tokenizer"]["tag_targets"] = False
    with pytest.raises(UserError, match=r"tokenizer\.tag_targets must not be false with several directions"):
        recipe_from_dict(given)
    given = {
        "task": "generate",
        "data": {"train": [{"path": "x.txt", "source": "a"}], "valid": 1},
        "train": {"steps": 1},
    }
    with pytest.raises(UserError, match="the source and target of a corpus must not be there with task = 'generate'"):
        recipe_from_dict(given)


def prepared(tmp_path: Path, valid: int) -> tuple[Recipe, Any]:
    given = values(tmp_path)
    given["data"]["valid"] = valid
    recipe = recipe_from_dict(given)
    return recipe, choose_evaluation_sets(recipe, find_corpora(recipe), lambda said: None)


def test_held_out_pairs_are_of_all_directions_and_in_no_training_pair_of_any(tmp_path: Path) -> None:
    recipe, sets = prepared(tmp_path, 30)
    assert [sum(texts[2:] == pair for texts in sets.valid) for pair in PAIRS] == [10, 10, 10]
    for source, target, *_ in sets.valid:
        assert sets.held_out.is_held_out(source, target) and sets.held_out.is_held_out(target, source)
    TASKS["translate"].write_held_out(tmp_path, "held", sets.valid, recipe)
    assert (tmp_path / "held.up-low.low").read_text(encoding="utf-8").count("\n") == 10


def test_a_source_begins_with_the_tag_of_its_own_corpus(run: Path) -> None:
    tokenizer = Tokenizer.load(run / "tokenizer")
    records = [Record(1, ("a b", "A B", "low", "up")), Record(2, ("a b", "α β", "low", "gre"))]
    src, tgt = encode_records(tokenizer, records)
    assert [ids[0] for ids in src] == list(tokenizer.tag_ids[:2]) and src[0][1:] == src[1][1:] == tokenizer.encode(
        "a b"
    )
    assert tgt[0] == tokenizer.encode("A B")


def test_a_run_of_one_direction_is_as_it_was(tmp_path: Path) -> None:
    """The token ids of a run, and what its model says of itself."""
    given = values(tmp_path, steps=1)
    given["data"] |= {"train": given["data"]["train"][0]["path"], "valid": 5, "source": "low", "target": "up"}
    bundle = regard.train(recipe_from_dict(given), out=tmp_path / "one", progress=False)
    settings = json.loads((bundle.folder / "config.json").read_text(encoding="utf-8"))
    assert settings["format"] == 1 and "directions" not in settings and bundle.directions == ()
    description = json.loads((bundle.folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    assert description["format"] == 1 and "targets" not in description
    assert encode_records(bundle.tokenizer, [Record(1, ("a", "A"))])[0] == [bundle.tokenizer.encode("a")]


def test_fine_tuning_keeps_the_tags_and_adds_new_ones(run: Path, tmp_path: Path) -> None:
    given = values(tmp_path, steps=2, init=str(run), lr=1e-5)
    one = {**given["data"], "train": given["data"]["train"][1], "valid": given["data"]["valid"][1:2]}
    given |= {"data": one, "model": {"preset": "init"}, "tokenizer": {}}
    bundle = regard.train(recipe_from_dict(given), out=tmp_path / "tuned", progress=False)
    assert bundle.directions == (("low", "gre"),) and bundle.tokenizer.targets == ("up", "gre", "low")
    assert regard.load(bundle.folder).translate("a b") == "α β"
    given["data"]["train"] = {**given["data"]["train"], "target": "new"}
    given["data"] |= {
        "train": [{"path": "train.low-up.{low,up}".replace("low,up", "low,new"), "source": "low", "target": "new"}]
    }
    (tmp_path / "train.low-up.new").write_text((tmp_path / "train.low-up.up").read_text())
    given["data"]["valid"] = 5
    more = regard.train(recipe_from_dict(given), out=tmp_path / "more", progress=False)
    assert more.tokenizer.targets == ("up", "gre", "low", "new") and more.directions == (("low", "new"),)


# --- bundles and exports ---


def test_a_bundle_says_which_directions_it_has(run: Path) -> None:
    bundle = load_bundle(find_bundle(run))
    settings = json.loads((bundle.folder / "config.json").read_text(encoding="utf-8"))
    assert settings["format"] == 4 and settings["directions"] == [list(pair) for pair in PAIRS]
    assert (bundle.source, bundle.target) == ("low", "up") and bundle.toward("up", "low").source == "up"
    with pytest.raises(UserError, match="must translate up → gre, but translates"):
        bundle.toward("up", "gre")


@pytest.mark.parametrize(
    ("directions", "said"),
    [
        ("en-fr", "must be a list of pairs"),
        ([["low"]], "must be a list of pairs"),
        ([["low", "a/b"]], "must be a language code"),
        ([["low", "gre"]], "one of them source and target"),
        ([["low", "up"], ["low", "up"]], "must be different pairs"),
        ([["low", "up"], ["low", "fr"]], "must have tags for the targets"),
        ([["low", f"x{number}"] for number in range(2000)] + [["low", "up"]], "at most 1000"),
    ],
)
def test_odd_directions_of_a_bundle_are_refused(run: Path, tmp_path: Path, directions: Any, said: str) -> None:
    import shutil

    from regard.files import write_manifest

    folder = tmp_path / "odd"
    shutil.copytree(run / "model", folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**settings, "directions": directions}), encoding="utf-8")
    write_manifest(folder, format=4)
    with pytest.raises(UserError, match=said):
        assert load_bundle(folder).tokenizer


def test_int8_keeps_the_directions(run: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    call("export", "--to", "bundle", "-m", str(run), "-o", str(tmp_path / "small"))
    small = regard.load(tmp_path / "small")
    assert small.directions == PAIRS and small.translate("a b", target="gre") == "α β"


def readme_code(folder: Path, opening: str) -> str:
    text = (folder / "README.md").read_text(encoding="utf-8")
    if opening:
        return text.split(opening)[1].split("```")[0].replace("FOLDER", str(folder))
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(lines).replace("FOLDER", str(folder))


def printed(code: str, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    exec(code, {"__name__": "readme"})
    return capfd.readouterr().out.strip()


def test_the_readme_for_ctranslate2_gives_the_tag(
    run: Path, tmp_path: Path, call: Callable[..., str], capfd: Any
) -> None:
    call("export", "--to", "ctranslate2", "-m", str(run), "-o", str(tmp_path / "ct2"))
    code = readme_code(tmp_path / "ct2", "```python\n")
    code = code.replace('["one sentence"]', '["a b"]')
    assert printed(code, capfd) == "A B"
    assert printed(code.replace("<tag0>", "<tag1>"), capfd) == "α β"
    assert "`<tag0>` for up, `<tag1>` for gre" in (tmp_path / "ct2" / "README.md").read_text(encoding="utf-8")


def test_the_script_for_onnx_gives_the_tag(
    run: Path, tmp_path: Path, monkeypatch: Any, call: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    call("export", "--to", "onnx", "-m", str(run), "-o", str(tmp_path / "onnx"))
    monkeypatch.chdir(tmp_path / "onnx")
    code = readme_code(tmp_path / "onnx", "```python\n")
    for target, expected in (("up", "A B"), ("gre", "α β")):
        monkeypatch.setattr("sys.stdin", io.StringIO("a b\n"))
        assert printed(code.replace("['up']", f"['{target}']"), capfd) == expected


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_read_the_tag_as_marians_code(
    run: Path, tmp_path: Path, call: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    call("export", "--to", "transformers", "-m", str(run), "-o", str(tmp_path / "hf"))
    code = readme_code(tmp_path / "hf", "").replace("A sentence.", "a b")
    assert printed(code, capfd) == "['A B']"
    assert printed(code.replace(">>up<<", ">>gre<<"), capfd) == "['α β']"


def test_a_directions_model_is_chosen_by_its_languages(
    run: Path, tmp_path: Path, monkeypatch: Any, call: Callable[..., str]
) -> None:
    import os
    import shutil

    shutil.copytree(run / "model", tmp_path / "cache" / "models" / "toy")
    monkeypatch.setitem(os.environ, "REGARD_CACHE", str(tmp_path / "cache"))
    assert call("translate", "--from", "low", "--to", "gre", "a b") == "α β\n"


# --- the server ---


def test_a_server_lists_and_serves_every_direction(run: Path) -> None:
    from tests.serve.server import running

    with running(model=run) as server:
        listed = {one["code"]: one["targets"] for one in server.get("/languages").json()}
        assert listed == {"gre": [], "low": ["gre", "up"], "up": ["low"]}
        targets = server.get("/v2/languages?type=target").json()
        assert [one["language"] for one in targets] == ["GRE", "LOW", "UP"]
        for source, target in PAIRS:
            text, expected = made(1, 5, source, target)[0]
            fields = {"q": text, "source": source, "target": target}
            assert server.post("/translate", json=fields).json()["translatedText"] == expected
        texts = {"text": ["a b"], "source_lang": "low", "target_lang": "GRE"}
        assert server.post("/v2/translate", json=texts).json()["translations"][0]["text"] == "α β"
        refused = server.post("/translate", json={"q": "a", "source": "low", "target": "de"})
        assert refused.status_code == 400 and "gre, low, up" in refused.json()["error"]
        aligned = {"q": "a b", "source": "low", "target": "gre", "alignments": True}
        assert server.post("/translate", json=aligned).json()["alignments"]["source"] == [[0, 1], [2, 3]]
        assert "low-up+low-gre+up-low" in server.get("/metrics").text


def test_two_models_of_one_direction_are_refused(run: Path) -> None:
    from regard.serve.served_bundles import find_bundles

    with pytest.raises(UserError, match="both translate low to up"):
        find_bundles([str(run), str(run)])


def test_the_direction_is_part_of_the_options(model: Model) -> None:
    side = model.toward("gre")._translator(dataclasses.replace(model.options, guard=True)).text_side
    assert side.options.languages == ("low", "gre") and side.reader.tag == model.bundle.tokenizer.target_tag("gre")
