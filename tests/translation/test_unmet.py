"""What was asked for and not done is said, on every surface."""

from __future__ import annotations

from pathlib import Path

import pytest

import regard.api
from regard.cli.translate import _result_json
from regard.generate.options import Engine
from regard.translation.constraints import TextConstraints
from regard.translation.glossary import Glossary
from regard.translation.results import Result, Translation, Unmet, unmet_note
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from tests.serve.server import running, until
from tests.translation.test_growth import Echo, tokenizer

WISHES = TextConstraints("Das ", ("Haus", "green"))
PATCH = """
from regard.translation.constraints import ConstraintBuilder
from regard.translation.results import Unmet
ConstraintBuilder.unmet = lambda *_: (Unmet("phrases", "h"),)
"""


def translator(glossary: Glossary | None = None) -> Translator:
    engine: Engine = Echo()  # type: ignore[assignment]  # a translation that lacks whatever is asked for
    options = TranslationOptions(guard=True, languages=("en", "de"), glossary=glossary)
    return Translator(tokenizer(), engine, options, 160)


def test_a_result_names_what_it_lacks() -> None:
    glossary = Glossary.of({"house": ["Haus", "Gebäude"], "cat": "Katze", "green": "green"})
    [result, plain] = translator(glossary).translate(
        ["The house is green.", "Nothing."], constraints=[WISHES, TextConstraints()]
    )
    assert result.unmet == (Unmet("prefix", "Das "), Unmet("phrases", "Haus"), Unmet("glossary", "Haus"))
    assert plain.unmet == ()


def test_a_term_that_is_there_less_often_than_in_the_source_is_lacking() -> None:
    once, twice = translator(Glossary.of({"house": "green"})).translate(["The house green.", "House, house, green."])
    assert once.unmet == () and twice.unmet == (Unmet("glossary", "green"),)


def test_a_line_that_is_copied_whole_lacks_everything() -> None:
    [result] = translator().translate([2_000 * "x"], constraints=[WISHES])
    assert result.text == 2_000 * "x"
    assert [one.option for one in result.unmet] == ["prefix", "phrases", "phrases"]


def test_the_command_line_and_python_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = Result("a", (Translation("b", 0.0),), unmet=(Unmet("phrases", "x"),))
    assert unmet_note([result, Result("c", (Translation("d", 0.0),))]) == (
        "asked for, but not in the translation of 'a': phrases: 'x'"
    )
    assert _result_json(result, False, False)["unmet"] == [{"option": "phrases", "text": "x"}]
    model = regard.load("tests/golden/bundle-1")
    monkeypatch.setattr("regard.translation.constraints.ConstraintBuilder.unmet", lambda *_: result.unmet)
    with pytest.warns(UserWarning, match="asked for, but not in the translation of 'a b': phrases: 'x'"):
        model.translate("a b", prefix="b ")
    (tmp_path / "a.txt").write_text("a b\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"a\.txt: asked for, but not in the translation of 'a b': phrases: 'x'"):
        model.translate_file(tmp_path / "a.txt", glossary={"a": "h"})


def test_both_http_apis_and_the_page_say_so() -> None:
    lost = [{"option": "phrases", "text": "h"}]
    with running(code=PATCH) as server:
        pair = {"source": "src", "target": "tgt"}
        ours = server.post("/translate", json={"q": "a b", "prefix": "b ", **pair}).json()
        assert ours["unmet"] == lost
        several = server.post("/translate", json={"q": ["a b", "c"], "prefix": "b ", **pair}).json()
        assert several["unmet"] == [lost, lost]
        assert "unmet" not in server.post("/translate", json={"q": "a b", **pair}).json()
        theirs = {"text": ["a b"], "source_lang": "src", "target_lang": "tgt", "prefix": "b "}
        assert server.post("/v2/translate", json=theirs).json()["translations"][0]["unmet"] == lost
        terms = {"glossary": "a\th", **pair}
        document = server.post("/translate_file", files={"file": ("a.txt", b"a b\n\na")}, data=terms).json()
        assert document["unmet"] == lost
        terms = {"glossary": "a\th", "source_lang": "src", "target_lang": "tgt"}
        handle = server.post("/v2/document", files={"file": ("a.txt", b"a b")}, data=terms).json()
        where, secret = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
        until(lambda: server.post(where, json=secret).json()["status"] == "done")
        assert server.post(where, json=secret).json()["unmet"] == lost
        page = server.post("/sentences", json={"q": "a b", "prefix": "b ", **pair}).json()
        assert page["sentences"][0]["unmet"] == lost


@pytest.mark.parametrize("text", ["The ▁ house", "▁", "house▁tree", "a ▁▁ b"])
def test_a_typed_space_of_the_tokenizer_is_kept(text: str) -> None:
    [result] = translator().translate([text])
    assert result.text.count("▁") == text.count("▁")
    small = regard.load("tests/golden/bundle-1")  # has no reserved pieces
    assert small.translate(f"a {text}").count("▁") == text.count("▁")
