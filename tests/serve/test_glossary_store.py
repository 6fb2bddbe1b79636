"""Glossaries that clients store on the server."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from regard.cli import main
from regard.errors import InputError, UserError
from regard.serve.glossary_store import GlossaryStore
from regard.serve.keys import Key, add_key
from tests.serve.server import Running, running

ALICE, BOB = Key("alice", "0" * 64), Key("bob/../alice", "1" * 64)


def test_each_key_has_its_own_and_they_outlive_the_server(tmp_path: Path) -> None:
    stored = GlossaryStore(tmp_path / "g", 2).add(ALICE, "ö", "en", "de", [("cat", "Kater")])
    store = GlossaryStore(tmp_path / "g", 2)  # another process, or the next server
    assert store.all_of(ALICE) == [store.find(ALICE, stored.id)]
    found = store.find(ALICE, stored.id)
    assert found is not None and (found.name, found.entries) == ("ö", (("cat", "Kater"),))
    assert store.all_of(BOB) == [] and store.find(BOB, stored.id) is None and not store.remove(BOB, stored.id)
    assert store.find(Key("alice", "2" * 64), stored.id) == found  # a new key under the old name
    assert store.remove(ALICE, stored.id) and not store.remove(ALICE, stored.id)


def test_what_is_stored_is_private_and_limited(tmp_path: Path) -> None:
    store = GlossaryStore(tmp_path / "g", 2)
    for name in "ab":
        store.add(ALICE, name, "en", "de", [("cat", "Kater")])
    with pytest.raises(InputError, match="a key may store at most 2 glossaries; delete one first"):
        store.add(ALICE, "c", "en", "de", [("cat", "Kater")])
    store.add(BOB, "a", "en", "de", [("cat", "Kater")])
    files = [path for path in (tmp_path / "g").rglob("*") if path.is_file()]
    assert len(files) == 3 and all(path.parent.parent == tmp_path / "g" for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("name", ["../keys", "", "x", "*", "../../etc/passwd", "a" * 5000, "\0"])
def test_an_id_is_never_a_path(tmp_path: Path, name: str) -> None:
    store = GlossaryStore(tmp_path / "g", 2)
    (tmp_path / "keys.json").write_text("{}")
    assert store.find(ALICE, name) is None and not store.remove(ALICE, name)
    assert (tmp_path / "keys.json").exists()


def test_the_folder_must_be_usable_and_needs_keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--glossaries .* cannot be made"):
        GlossaryStore(tmp_path / "file" / "g", 2)
    assert main(["serve", "--glossaries", str(tmp_path / "g"), "--port", "0"]) == 2
    assert "--glossaries needs --keys FILE" in capfd.readouterr().err


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str, str]]:
    folder = tmp_path_factory.mktemp("keyed")
    keys = [add_key(folder / "keys.json", name) for name in ("alice", "bob")]
    with running(
        "--keys", str(folder / "keys.json"), "--glossaries", str(folder / "g"), "--limit", "terms=3"
    ) as server:
        yield server, keys[0], keys[1]


def post(keyed: tuple[Running, str, str], path: str = "/v2/glossaries", **fields: str) -> httpx.Response:
    server, key, _ = keyed
    sent = {"name": "n", "source_lang": "src", "target_lang": "tgt", **fields}
    return server.post(path, json=sent, headers={"authorization": f"DeepL-Auth-Key {key}"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"entries": "SECRET"}, "entries, line 1 must be a term, a tab and its translation"),
        ({"entries": "a\tb\n\nSECRET\tb\tc"}, "entries, line 3 must be"),
        ({"entries": "a,b,c,d,SECRET", "entries_format": "csv"}, "entries, line 1 must be a term, a comma"),
        ({"entries": "SECRET\tb\nSECRET\tc"}, "entries, line 2 has a term that is there already"),
        ({"entries": "SECRET\t"}, "entries, entry 1 must be words on one line"),
        ({"entries": "\n"}, "entries must be 1 to 3 lines"),
        ({"entries": "a\tb\nc\td\ne\tf\ng\tSECRET"}, "entries must be 1 to 3 lines"),
        ({"entries": "a\t" + "SECRET" * 100}, "entries, entry 1 may have at most 100 characters"),
        ({"entries": "a\tb", "name": " "}, "name must be a string of 1 to 1024 characters"),
        ({"entries": "a\tb", "source_lang": "SECRET"}, "source_lang must be a language that is served into tgt: src"),
    ],
)
def test_a_bad_glossary_gets_one_line(keyed: tuple[Running, str, str], fields: dict[str, str], message: str) -> None:
    answer = post(keyed, **fields)
    assert answer.status_code == 400 and answer.json()["message"].startswith(message), answer.text
    assert "SECRET" not in answer.text


def test_a_stored_glossary_is_only_for_its_key(keyed: tuple[Running, str, str]) -> None:
    server, _, bob = keyed
    answer = post(keyed, entries="#1\tk")  # to DeepL a # is no comment
    assert answer.status_code == 201 and answer.json()["entry_count"] == 1
    place = f"/v2/glossaries/{answer.json()['glossary_id']}"
    with server.client() as client:
        assert client.get(place).status_code == client.get("/v2/glossaries").status_code == 403
        client.headers["authorization"] = f"DeepL-Auth-Key {bob}"
        assert client.get("/v2/glossaries").json() == {"glossaries": []}
        for method, path in (("GET", place), ("GET", f"{place}/entries"), ("DELETE", place)):
            assert client.request(method, path).status_code == 404
        wanted = {"text": "a", "source_lang": "src", "target_lang": "tgt", "glossary_id": answer.json()["glossary_id"]}
        assert client.post("/v2/translate", json=wanted).status_code == 404
        client.headers["authorization"] = f"DeepL-Auth-Key {keyed[1]}"
        assert client.get(f"{place}/entries").text == "#1\tk"
        assert client.post("/v2/translate", json=wanted).status_code == 200
        for change, message in (
            ({"source_lang": None}, "glossary_id needs source_lang"),
            ({"glossary": {"a": "b"}}, "glossary and glossary_id do not go together"),
            ({"glossary_ids": "a,b,c,d,e"}, "glossary_ids may have at most 5 glossaries"),
        ):
            refused = client.post("/v2/translate", json={**wanted, **change})
            assert refused.status_code == 400 and refused.json()["message"].startswith(message)
        assert client.delete(place).status_code == 204
