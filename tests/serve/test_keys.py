"""API keys, their rates and the limits of a server, as files and options say them."""

from __future__ import annotations

import hmac
import json
import re
from pathlib import Path

import deepl
import pytest
from libretranslatepy import LibreTranslateAPI

from regard.cli import main
from regard.errors import UserError
from regard.serve.keys import Bucket, Key, Keys, add_key, hash_key, load_keys
from regard.serve.limits import Limits
from regard.serve.refusal import Refused
from regard.serve.web.status import as_http
from tests.serve.server import running


def test_a_key_is_found_by_its_hash_and_stored_as_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    alice, bob = add_key(file, "alice"), add_key(file, "bob")
    assert alice not in file.read_text() and bob not in file.read_text()
    keys = load_keys(file)
    assert keys.find(alice).name == "alice" and keys.find(bob).name == "bob"
    for wrong in (None, "", "x", alice[:-1], alice + " "):
        with pytest.raises(Refused, match="api_key is missing or unknown"):
            keys.find(wrong)
    assert Keys().find(None) is None


def test_every_key_is_compared_in_constant_time_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    real = hmac.compare_digest

    def watched(left: str, right: str) -> bool:
        compared.append((str.__str__(left), right))
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watched)

    class Opaque(str):
        """A hash that may be compared in no other way."""

        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared in a way whose time tells something")

    keys = Keys([Key(name, Opaque(hash_key(name))) for name in ("first", "second", "last")])
    for given in ("first", "last", "wrong"):
        compared.clear()
        try:
            found = keys.find(given)
        except Refused:
            found = None
        assert (found.name if found else "wrong") == given
        assert compared == [(hash_key(name), hash_key(given)) for name in ("first", "second", "last")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "field keys must be a list of keys; add one with"),
        ('{"keys": [{"sha256": ""}]}', r"keys\[0\].name must be a string"),
        ('{"keys": [{"name": "a", "sha256": "xyz"}]}', r"keys\[0\].sha256 must be 64 hexadecimal digits"),
        (f'{{"keys": [{{"name": "a", "sha256": "{"0" * 64}", "rate": 1}}]}}', r"keys\[0\].rate is not known"),
        (
            f'{{"keys": [{{"name": "a", "sha256": "{"0" * 64}", "requests_per_minute": 0}}]}}',
            "requests_per_minute must be a number above 0",
        ),
    ],
)
def test_a_damaged_file_of_keys_is_refused_by_field(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(UserError, match=complaint):
        load_keys(file)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "alice")
    with pytest.raises(UserError, match="there is a key named alice already"):
        add_key(tmp_path / "keys.json", "alice")


def test_a_bucket_fills_with_time() -> None:
    now = [0.0]
    bucket = Bucket(60, clock=lambda: now[0])
    bucket.take(60, "requests")
    with pytest.raises(Refused, match="60 requests a minute; try again in 1 s") as refused:
        bucket.take(1, "requests")
    assert as_http(refused.value).status == 429 and refused.value.retry == 1
    now[0] = 1.0
    bucket.take(1, "requests")
    now[0] = 1000.0  # rest does not add up beyond a minute's worth
    bucket.take(60, "requests")
    with pytest.raises(Refused):
        bucket.take(1, "requests")


def test_what_is_more_than_a_minutes_worth_is_let_through_once_and_paid_off() -> None:
    now = [0.0]
    bucket = Bucket(100, clock=lambda: now[0])
    bucket.take(300, "characters")
    now[0] = 60.0
    with pytest.raises(Refused):
        bucket.take(1, "characters")
    now[0] = 121.0
    bucket.take(1, "characters")


def test_a_server_with_keys_serves_those_who_have_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    assert main(["serve", "--keys", str(file), "--new-key", "alice"]) == 0
    alice = capfd.readouterr().out.strip()
    assert main(["serve", "--keys", str(file), "--new-key", "bob"]) == 0
    bob = capfd.readouterr().out.strip()
    entries = json.loads(file.read_text())
    entries["keys"][1]["requests_per_minute"] = 1
    file.write_text(json.dumps(entries))
    with running("--keys", str(file)) as server:
        body = {"q": "a b", "source": "src", "target": "tgt"}
        assert server.post("/translate", json=body).status_code == 403
        assert server.post("/translate", json={**body, "api_key": "wrong"}).status_code == 403
        assert server.post("/v2/translate", json={"text": "a b", "target_lang": "tgt"}).status_code == 403
        assert server.post("/detect", json={"q": "a"}).status_code == 403
        assert server.get("/v2/usage").status_code == 403
        assert server.get("/health").status_code == 200 and server.get("/languages").status_code == 200
        assert LibreTranslateAPI(server.url, alice).translate("a b", "src", "tgt") == "b a"
        assert deepl.Translator(alice, server_url=server.url).translate_text("a b", target_lang="TGT").text == "b a"
        bearer = {"authorization": f"Bearer {bob}"}
        assert server.post("/translate", json=body, headers=bearer).json() == {"translatedText": "b a"}
        refused = server.post("/translate", json=body, headers=bearer)
        assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 60
        lines = server.stop()
    assert not [line for line in lines if alice in line or bob in line]
    assert {json.loads(line).get("key") for line in lines} == {None, "alice", "bob"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--limit", "charcters=5"], "--limit charcters is not known; did you mean characters?"),
        (["--limit", "texts=many"], "--limit texts must be a whole number, but is 'many'"),
        (["--limit", "texts=0"], "limit texts must be more than 0, but is 0"),
        (["--limit", "window_ms=-1"], "limit window_ms must not be negative"),
        (["--new-key", "alice"], "--new-key needs --keys FILE"),
        (["-m", "nowhere"], "nowhere: there is no such model"),
        (["-m", "tests/golden/bundle-1", "--port", "70000"], "--port must be between 0 and 65535, but is 70000"),
        (["-m", "tests/golden/bundle-1", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1 port 8000"),
    ],
)
def test_a_wrong_option_gets_one_line(arguments: list[str], complaint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 2
    error = capfd.readouterr().err
    assert re.fullmatch(r"regard: .*\n", error) and complaint in error


def test_limits_have_their_own_types() -> None:
    changed = Limits().changed(["texts=1_000", "seconds=2.5"])
    assert (changed.texts, changed.seconds) == (1000, 2.5)
