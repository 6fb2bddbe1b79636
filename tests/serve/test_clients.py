"""Other people's clients against a real server: every call that they have."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException, ServerException
from deepl.api_data import MultilingualGlossaryDictionaryEntries
from libretranslatepy import LibreTranslateAPI

from regard.serve.keys import add_key
from tests.serve.server import PATIENCE, Running, running
from tests.tiny import make_bundle

JAVASCRIPT = Path(__file__).parent / "javascript"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """A server that requires a key, with a model from English to German, since deep-translator has a list of languages."""
    folder = tmp_path_factory.mktemp("keyed")
    key = add_key(folder / "keys.json", "alice")
    store = ("--glossaries", str(folder / "glossaries"), "--limit", "glossaries=3")
    model = make_bundle(folder / "en-de").folder
    with running("--keys", str(folder / "keys.json"), *store, "-m", str(model)) as one:
        yield one, key


def test_libretranslates_own_client_works_unchanged(server: Running) -> None:
    client = LibreTranslateAPI(server.url)
    assert client.translate("a b c", "src", "tgt") == "c b a"
    assert client.languages() == [
        {"code": "src", "name": "src", "targets": ["tgt"]},
        {"code": "tgt", "name": "tgt", "targets": []},
    ]
    assert client.detect("Guten Morgen, wie geht es Ihnen heute?")[0]["language"] == "de"


def test_deepls_own_client_works_unchanged(server: Running) -> None:
    client = deepl.Translator("any-key", server_url=server.url)
    result = client.translate_text("a b c", source_lang="SRC", target_lang="TGT")
    assert (result.text, result.detected_source_lang, result.billed_characters) == ("c b a", "SRC", 5)
    results = client.translate_text(["a b", "c d e f"], target_lang="TGT", split_sentences="0")
    assert [one.text for one in results] == ["b a", "f e d c"]
    assert client.translate_text("a <b>b</b> c", target_lang="TGT", tag_handling="html").text == "c <b>b</b> a"
    for split, expected in (("1", "b a\nd c"), ("nonewlines", "d c b a"), ("0", "b a\nd c")):
        assert client.translate_text("a b\nc d", target_lang="TGT", split_sentences=split).text == expected
    page = '<d a="1"><t>a b c</t><s>c <x/>d <b>e</b> f</s><k>a b</k></d>'
    xml = client.translate_text(page, target_lang="TGT", tag_handling="xml", ignore_tags=["k"]).text
    assert xml == '<d a="1"><t>c b a</t><s>f <x/><b>e</b> d c</s><k>a b</k></d>'
    assert [language.code for language in client.get_source_languages()] == ["SRC"]
    assert [language.code for language in client.get_target_languages()] == ["TGT"]
    before = client.get_usage().character.count
    client.translate_text("a b c d", target_lang="TGT")
    assert client.get_usage().character.count == (before or 0) + 7
    typed = client.translate_text("a b", target_lang="TGT", context="c d", model_type="quality_optimized")
    assert (typed.text, typed.model_type_used) == ("b a", "quality_optimized")
    plain = client.translate_text("a b", target_lang="TGT", formality="prefer_more", preserve_formatting=True)
    assert (plain.text, plain.model_type_used) == ("b a", None)
    with pytest.raises(deepl.DeepLException, match="target_lang must be a language that is served: tgt"):
        client.translate_text("a", target_lang="XX")
    with pytest.raises(deepl.DeepLException, match="formality must be"):
        client.translate_text("a", target_lang="TGT", formality="more")
    for name, value in (
        ("custom_instructions", ["b"]),
        ("style_rule", "b"),
        ("translation_memory", "b"),
        ("glossary", "b"),
    ):
        remedy = "send the entries themselves as glossary" if name == "glossary" else "leave it out"
        with pytest.raises(deepl.DeepLException, match=f"is not supported by this server; {remedy}"):
            client.translate_text("a", source_lang="SRC", target_lang="TGT", **{name: value})


def test_deep_translator_works_unchanged(keyed: tuple[Running, str], tmp_path: Path) -> None:
    server, key = keyed
    headers = {"authorization": f"Bearer {key}"}

    def ours(text: str) -> str:
        answer = server.post("/translate", json={"q": text, "source": "en", "target": "de"}, headers=headers)
        return str(answer.json()["translatedText"])

    client = LibreTranslator("English", "German", api_key=key, custom_url=f"{server.url}/")
    texts = ["Good morning!", "a + b & c = 50% ö?"]  # a query has to escape what it holds
    assert [client.translate(text) for text in texts] == [ours(text) for text in texts]
    assert client.translate_batch(texts) == [ours(text) for text in texts]
    (tmp_path / "letter.txt").write_text("Good morning!", encoding="utf-8")
    assert client.translate_file(str(tmp_path / "letter.txt")) == ours("Good morning!")
    with pytest.raises(AuthorizationException):
        LibreTranslator("en", "de", api_key="wrong", custom_url=f"{server.url}/").translate("a")
    with pytest.raises(ServerException):
        LibreTranslator("en", "fr", api_key=key, custom_url=f"{server.url}/").translate("a")


def test_the_other_clients_send_their_key(keyed: tuple[Running, str]) -> None:
    server, key = keyed
    client = LibreTranslateAPI(server.url, api_key=key)
    assert client.translate("a b c", "src", "tgt") == "c b a"
    assert client.detect("Guten Morgen, wie geht es Ihnen heute?")[0]["language"] == "de"
    assert [one["code"] for one in client.languages()] == ["de", "en", "src", "tgt"]
    assert deepl.Translator(key, server_url=server.url).translate_text("a b c", target_lang="TGT").text == "c b a"
    with pytest.raises(deepl.AuthorizationException, match="auth_key is missing or unknown"):
        deepl.Translator("wrong", server_url=server.url).get_usage()


def test_deepls_own_client_stores_glossaries(keyed: tuple[Running, str], tmp_path: Path) -> None:
    server, key = keyed
    client = deepl.Translator(key, server_url=server.url)
    pairs = [(pair.source_lang, pair.target_lang) for pair in client.get_glossary_languages()]
    assert pairs == [("en", "de"), ("src", "tgt")]
    assert client.list_glossaries() == []
    stored = client.create_glossary("letters", "SRC", "TGT", {"a": "k", "c": "c"})
    assert (stored.name, stored.entry_count, stored.ready) == ("letters", 2, True)
    assert (stored.source_lang, stored.target_lang) == ("SRC", "TGT")
    other = client.create_glossary_from_csv("more", "SRC", "TGT", 'a,l\n"b",m,src,tgt\n')
    assert client.get_glossary_entries(other) == {"a": "l", "b": "m"}
    assert [one.glossary_id for one in client.list_glossaries()] == [stored.glossary_id, other.glossary_id]
    assert vars(client.get_glossary(stored.glossary_id)) == vars(stored)

    def translated(**named: object) -> str:
        return str(client.translate_text("a b c", source_lang="SRC", target_lang="TGT", **named).text)

    sent = {"glossary": {"a": "k", "c": "c"}}
    assert translated(glossary=stored) == translated(extra_body_parameters=sent) != translated()
    assert client.translate_text_with_glossary("a b c", stored).text == translated(glossary=stored)
    both = {"glossary": {"a": "k", "c": "c", "b": "m"}}  # of two entries for a term, the first counts
    assert translated(glossary_ids=[stored, other]) == translated(extra_body_parameters=both)
    (tmp_path / "in.txt").write_text("a b c", encoding="utf-8")
    client.translate_document_from_filepath(
        tmp_path / "in.txt", tmp_path / "out.txt", source_lang="SRC", target_lang="TGT", glossary=stored
    )
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == translated(glossary=stored)

    client.create_glossary("third", "SRC", "TGT", {"a": "k"})
    with pytest.raises(deepl.DeepLException, match="at most 3 glossaries; delete one"):
        client.create_glossary("fourth", "SRC", "TGT", {"a": "k"})
    with pytest.raises(deepl.DeepLException, match="glossary from src to tgt; name one for these languages"):
        client.translate_text("a", source_lang="EN", target_lang="DE", glossary=stored.glossary_id)
    for one in client.list_glossaries():
        client.delete_glossary(one)
    assert client.list_glossaries() == []
    for call in (client.get_glossary, client.get_glossary_entries, client.delete_glossary):
        with pytest.raises(deepl.GlossaryNotFoundException, match="this key has no glossary"):
            call(stored.glossary_id)
    with pytest.raises(deepl.DeepLException, match="this key has no glossary with this glossary_id"):
        translated(glossary=stored.glossary_id)


def test_deepls_own_client_translates_documents_step_by_step(server: Running) -> None:
    client = deepl.DeepLClient("any", server_url=server.url)
    named = {"source_lang": "SRC", "target_lang": "TGT", "filename": "in.txt"}
    out = io.BytesIO()
    done = client.translate_document(b"a b c", out, **named)  # type: ignore[arg-type]
    assert out.getvalue() == b"c b a" and done.done
    out = io.BytesIO()
    unnamed = io.BytesIO(b"a b c")  # which the client names "file", whatever `filename` says
    client.translate_document(unnamed, out, **named, extra_body_parameters={"filename": "in.txt"})  # type: ignore[arg-type]
    assert out.getvalue() == b"c b a"
    handle = client.translate_document_upload(b"a b", **named)  # type: ignore[arg-type]
    assert client.translate_document_wait_until_done(handle).done
    assert client.translate_document_get_status(handle).status.value == "done"
    out = io.BytesIO()
    client.translate_document_download(handle, output_file=out)
    assert out.getvalue() == b"b a"
    assert client.server_url == server.url and client.set_app_info("x", "1") is client
    client.close()


NO_WRITING = "rephrasing and correcting are not offered"
NO_SETS = "glossaries of several language pairs are not offered"
NO_STYLES = "style rules are not offered"
NO_MEMORIES = "translation memories are not offered"
ENTRIES = MultilingualGlossaryDictionaryEntries("EN", "DE", {"a": "b"})
# Every other call of DeepL's client, with arguments, and how the server refuses it.
NOT_OFFERED: dict[str, tuple[tuple[Any, ...], str]] = {
    "rephrase_text": (("a",), NO_WRITING),
    "correct_text": (("a",), NO_WRITING),
    "create_multilingual_glossary": (("x", [ENTRIES]), NO_SETS),
    "create_multilingual_glossary_from_csv": (("x", "EN", "DE", "a,b"), NO_SETS),
    "update_multilingual_glossary_name": (("x", "y"), NO_SETS),
    "update_multilingual_glossary_dictionary": (("x", ENTRIES), NO_SETS),
    "update_multilingual_glossary_dictionary_from_csv": (("x", "EN", "DE", "a,b"), NO_SETS),
    "replace_multilingual_glossary_dictionary": (("x", ENTRIES), NO_SETS),
    "replace_multilingual_glossary_dictionary_from_csv": (("x", "EN", "DE", "a,b"), NO_SETS),
    "get_multilingual_glossary": (("x",), NO_SETS),
    "list_multilingual_glossaries": ((), NO_SETS),
    "get_multilingual_glossary_entries": (("x", "EN", "DE"), NO_SETS),
    "delete_multilingual_glossary": (("x",), NO_SETS),
    "delete_multilingual_glossary_dictionary": (("x", ENTRIES), NO_SETS),
    "get_all_style_rules": ((), NO_STYLES),
    "create_style_rule": (("x", "en"), NO_STYLES),
    "get_style_rule": (("x",), NO_STYLES),
    "update_style_rule_name": (("x", "y"), NO_STYLES),
    "delete_style_rule": (("x",), NO_STYLES),
    "update_style_rule_configured_rules": (("x", {}), NO_STYLES),
    "create_style_rule_custom_instruction": (("x", "y", "z"), NO_STYLES),
    "get_style_rule_custom_instruction": (("x", "y"), NO_STYLES),
    "update_style_rule_custom_instruction": (("x", "y", "z", "w"), NO_STYLES),
    "delete_style_rule_custom_instruction": (("x", "y"), NO_STYLES),
    "list_translation_memories": ((), NO_MEMORIES),
    "get_translation_memory": (("x",), NO_MEMORIES),
    "list_translation_memory_segments": (("x",), NO_MEMORIES),
    "delete_translation_memory": (("x",), NO_MEMORIES),
    "create_translation_memory_import": (("x", 1), NO_MEMORIES),
    "create_translation_memory_export": (("x",), NO_MEMORIES),
    "get_translation_memory_job": (("x",), NO_MEMORIES),
    "wait_until_translation_memory_job_done": (("x",), NO_MEMORIES),
    "export_translation_memory_to_filepath": (("x", "out.tmx"), NO_MEMORIES),
}
DRIVEN = set(
    "translate_text translate_text_with_glossary translate_document translate_document_from_filepath translate_document_upload "
    "translate_document_get_status translate_document_wait_until_done translate_document_download get_source_languages "
    "get_target_languages get_usage get_glossary_languages create_glossary create_glossary_from_csv get_glossary list_glossaries "
    "get_glossary_entries delete_glossary server_url set_app_info close".split()
)
# They go to an address that an earlier answer names, which this server never does.
ELSEWHERE = {
    "upload_translation_memory_file",
    "download_translation_memory_export",
    "import_translation_memory_from_filepath",
}


def test_every_call_of_deepls_client_is_driven() -> None:
    calls = {name for name in dir(deepl.DeepLClient) if not name.startswith("_")}
    assert calls == DRIVEN | set(NOT_OFFERED) | ELSEWHERE


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_deepl_has_and_this_server_has_not_is_refused_by_name(name: str, server: Running) -> None:
    given, message = NOT_OFFERED[name]
    client = deepl.DeepLClient("any", server_url=server.url)
    with pytest.raises(deepl.DeepLException, match=message):
        getattr(client, name)(*given)


def test_a_server_without_stored_glossaries_says_so(server: Running) -> None:
    client = deepl.Translator("any", server_url=server.url)
    assert client.get_glossary_languages() == []
    with pytest.raises(deepl.DeepLException, match="stores no glossaries; send the entries as glossary with each text"):
        client.create_glossary("letters", "SRC", "TGT", {"a": "k"})
    with pytest.raises(deepl.DeepLException, match="glossary_ids is not supported by this server; send the entries"):
        client.translate_text("a", source_lang="SRC", target_lang="TGT", glossary_ids=["x"])


def is_named(message: str | None) -> bool:
    """Whether an error says which of DeepL's services is not offered."""
    return message is not None and any(one in message for one in (NO_WRITING, NO_SETS, NO_STYLES, NO_MEMORIES))


@pytest.mark.skipif(
    shutil.which("node") is None or not (JAVASCRIPT / "node_modules").exists(),
    reason="needs node, and `npm ci` in tests/serve/javascript",
)
def test_the_clients_in_javascript_work_unchanged(keyed: tuple[Running, str], tmp_path: Path) -> None:
    server, key = keyed
    command = ["node", str(JAVASCRIPT / "clients.mjs"), server.url, key, str(tmp_path)]
    answers = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE).stdout)
    headers = {"authorization": f"Bearer {key}"}
    body = {"q": "Good morning!", "source": "en", "target": "de"}
    ours = server.post("/translate", json=body, headers=headers).json()["translatedText"]
    assert answers.pop("formality")["error"].startswith("Bad request, message: formality must be default")
    assert answers.pop("no glossary")["error"].startswith("Glossary not found, message: this key has no glossary")
    # Every call of deepl-node's client that is not driven above, with its error.
    refused = answers.pop("refused")
    assert len(refused) == 32 and {name for name, message in refused.items() if not is_named(message)} == set()
    assert answers == {
        "text": "c b a",
        "texts": ["b a", "d c"],
        "options": "c b a",
        "model type": "quality_optimized",
        "html": "c <b>b</b> a",
        "xml": "<d><k>a b</k><t>c b a</t></d>",
        "sources": ["en", "src"],
        "targets": ["de", "tgt"],
        "usage": True,
        "glossary pairs": 2,
        "glossary": 1,
        "glossaries": ["letters"],
        "glossary entries": {"a": "k"},
        "with glossary": "c b k",
        "delete glossary": None,
        "document": "c b a",
        "document in steps": ["done", "c b a"],
        "glossary of CSV": 2,
        "npm translate": ours,
    }
