"""What a client may want of the search, over real HTTP: the results are those of the Python API with the same options, which goes
another way to the same engine; what is beyond the limits is refused by name."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deepl
import pytest

import regard
from regard.bundle import load_bundle
from regard.data.tokenizer import Tokenizer
from regard.errors import InputError, UserError
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.serve.refusal import Busy
from regard.serve.search import SearchRequest
from regard.serve.thread_pool import ThreadPool
from tests.serve.server import GOLDEN, Running, held_by, running, started, until

GOLDEN_2 = GOLDEN.parent / "bundle-2"  # it protects
TEXTS = ["a b c", "p o n m", "d e f g", "a p a p", "h g f"]


@pytest.fixture(scope="module", params=["auto", "torch"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server(engine: str) -> Iterator[Running]:
    """One that does all."""
    with running("--engine", engine) as one:
        yield one


@pytest.fixture(scope="module")
def model(engine: str) -> regard.Model:
    return regard.load(GOLDEN, engine=engine, device="cpu")


@pytest.fixture(scope="module")
def fast() -> Iterator[Running]:
    """One with CTranslate2 alone."""
    with running("--engine", "ctranslate2") as one:
        yield one


def ask(server: Running, q: object, **fields: object) -> Any:
    answer = server.post("/translate", json={"q": q, "source": "src", "target": "tgt", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


SEARCHES: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 8, "alpha": 0.0},
    {"beam": 8, "mbr": "chrf"},
    {"keep": ["b", "o n"]},
    {"keep": ["a p"], "beam": 6},
    {"glossary": {"b": "q"}},
    {"glossary": {"b": "k", "p": "c"}},
    {"glossary": {"a": "x y", "o": ["k", "m"]}, "beam": 2},
    {"glossary": {"p": "b"}, "keep": ["o"]},
    {"prefix": "c b"},
    {"prefix": "m "},
    {"phrases": ["h", "a"]},
    {"prefix": "d ", "phrases": ["h"], "glossary": {"d": "k"}},
    {"coverage": 0.3},
    {"no_repeat": 2},
    {"max_repeat": 1},
    {"beam": 6, "groups": 3, "diversity": 0.8},
    {"sample": True, "seed": 3, "temperature": 1.3},
    {"sample": True, "beam": 8, "top_k": 5, "top_p": 0.9, "seed": 7, "mbr": "bleu"},
]


@pytest.mark.filterwarnings("ignore:asked for, but not in the translation")  # the model has learnt no term twice
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: json.dumps(search))
def test_the_server_finds_what_the_python_api_finds(
    server: Running, model: regard.Model, search: dict[str, Any]
) -> None:
    expected = model.translate(TEXTS, **search)
    assert ask(server, TEXTS, **search)["translatedText"] == expected
    fields = {"text": TEXTS, "source_lang": "src", "target_lang": "tgt", **search}
    found = server.post("/v2/translate", json=fields).json()["translations"]
    assert [one["text"] for one in found] == expected
    for text, one in zip(TEXTS[:2], expected, strict=False):
        answer = server.post("/sentences", json={"q": text, "source": "src", "target": "tgt", **search})
        assert [each["ways"][0]["text"] for each in answer.json()["sentences"]] == [one]


def test_something_changes_with_every_option(server: Running) -> None:
    """So that the comparison above can fail."""
    plain = ask(server, TEXTS)["translatedText"]
    for search in SEARCHES:
        if not {"glossary", "phrases", "sample"}.isdisjoint(search) and "mbr" not in search:
            assert ask(server, TEXTS, **search)["translatedText"] != plain, search


def test_a_list_of_the_best_comes_with_its_options(server: Running, model: regard.Model) -> None:
    search = {"beam": 6, "groups": 3, "glossary": {"b": "q"}}
    answer = ask(server, "a b c", alternatives=3, **search)
    [result] = model.nbest(["a b c"], 4, **search)
    expected = list(dict.fromkeys(way.text for way in result.translations))
    assert [answer["translatedText"], *answer["alternatives"]] == expected


def test_requests_with_different_options_at_once_get_what_each_gets_alone(server: Running) -> None:
    alone = [ask(server, TEXTS, **search) for search in SEARCHES] + [ask(server, TEXTS)]
    with ThreadPoolExecutor(16) as pool:
        jobs = [
            (number % len(alone), pool.submit(ask, server, TEXTS, **([*SEARCHES, {}][number % len(alone)])))
            for number in range(4 * len(alone))
        ]
        for number, job in jobs:
            assert job.result() == alone[number]


def test_a_glossary_may_be_a_text_of_lines_and_a_form(server: Running) -> None:
    expected = ask(server, "a b c", glossary={"b": "q", "c": ["k", "m"]}, keep=["a"])
    form = {"q": "a b c", "source": "src", "target": "tgt", "keep": "a\n\n", "beam": "4"}
    lines = "# a comment\nb\tq\n\nc\tk\nc\tm\n"
    assert server.post("/translate", data={**form, "glossary": lines}).json() == expected
    assert ask(server, "a b c", glossary=lines, keep="a") == expected


def test_html_and_events_heed_a_glossary(server: Running) -> None:
    assert ask(server, "<p>a b <b>c</b></p>", format="html", glossary={"b": "q"})["translatedText"].count("q") == 1
    fields = {
        "q": "a b c\np b n",
        "source": "src",
        "target": "tgt",
        "glossary": {"b": "q"},
        "keep": ["n"],
        "mbr": "chrf",
    }
    with server.client() as client:
        answer = client.post("/translate", json=fields, headers={"accept": "text/event-stream"})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    plain = server.post("/translate", json=fields).json()
    assert events[-1] == plain
    lines = {event["sentence"]: event["translatedText"] for event in events[:-1]}
    assert [lines[0], lines[1]] == plain["translatedText"].splitlines()
    assert all("q" in line for line in lines.values())


def test_documents_heed_glossary_and_kept_words(server: Running, model: regard.Model, tmp_path: Path) -> None:
    terms = {"glossary": {"b": "q"}, "keep": ["o"]}
    lines = ["a b c", "p o n m"]
    expected = "".join(f"{line}\n" for line in model.translate(lines, **terms))
    form = {"source": "src", "target": "tgt", "glossary": "b\tq", "keep": "o"}
    text = "".join(f"{line}\n" for line in lines)
    with server.client() as client:
        answer = client.post("/translate_file", data=form, files={"file": ("a.txt", text.encode())})
        assert client.get(answer.json()["translatedFileUrl"]).text == expected
    (tmp_path / "a.txt").write_text(text)
    deepl.Translator("any", server_url=server.url).translate_document_from_filepath(
        tmp_path / "a.txt", tmp_path / "b.txt", source_lang="src", target_lang="tgt",
        extra_body_parameters={"glossary": "b\tq", "keep": "o"},
    )  # fmt: skip
    assert (tmp_path / "b.txt").read_text() == expected


def test_words_by_a_glossary_and_kept_ones_are_marked(server: Running) -> None:
    fields = {"q": "a b c d", "source": "src", "target": "tgt", "glossary": {"b": "q"}, "keep": ["d"]}
    [sentence] = server.post("/sentences", json=fields).json()["sentences"]
    held = [word["text"] for word in sentence["ways"][0]["words"] if word["held"]]
    assert sorted(held) == ["d", "q"]
    [plain] = server.post("/sentences", json={**fields, "glossary": None, "keep": None}).json()["sentences"]
    assert not any(word["held"] for word in plain["ways"][0]["words"])


def test_protected_words_go_through_as_reserved_pieces() -> None:
    model = regard.load(GOLDEN_2, engine="ctranslate2")
    texts = ["a b Regard c", "Regard", "x a Regard Regard", "a b c"]
    with running(model=GOLDEN_2) as server:
        pair = {"source": model.bundle.source, "target": model.bundle.target}
        found = server.post("/translate", json={"q": texts, **pair, "keep": ["Regard"]}).json()["translatedText"]
    assert found == model.translate(texts, keep=["Regard"])
    assert [one.count("Regard") for one in found] == [1, 1, 2, 0]


# --- what is refused ---

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"beam": 0}, "beam must be between 1 and 16"),
    ({"beam": 17}, "beam must be between 1 and 16"),
    ({"beam": "many"}, "beam must be an integer between 1 and 16"),
    ({"beam": True}, "beam must be an integer"),
    ({"alpha": False}, "alpha must be a number"),
    ({"beam": 2, "alternatives": 2}, "beam must be more than alternatives (2)"),
    ({"alpha": -1}, "alpha must be between 0 and 5"),
    ({"alpha": "nan"}, "alpha must be between 0 and 5"),
    ({"coverage": 6}, "coverage must be between 0 and 5"),
    ({"no_repeat": -1}, "no_repeat must be between 0 and 100"),
    ({"groups": 17}, "groups must be between 1 and 16"),
    ({"beam": 4, "groups": 3}, "the beam must be a multiple of groups (3)"),
    ({"diversity": 0.3}, "diversity is for the groups of a beam"),
    ({"sample": "perhaps"}, "sample must be true or false"),
    ({"seed": 3}, "temperature, top_k, top_p and seed are for sampling; add sample"),
    ({"sample": True, "temperature": 0}, "temperature must be between 0.01 and 10"),
    ({"sample": True, "top_p": 1.5}, "top_p must be between 0.001 and 1"),
    ({"sample": True, "groups": 2}, "sample and groups exclude each other"),
    ({"mbr": "ter"}, "mbr must be bleu or chrf"),
    ({"mbr": "bleu", "beam": 2}, "mbr chooses among the translations of a beam of at least 3"),
    ({"glossary": {"Geheim": ""}}, "glossary, entry 1 must be words on one line"),
    ({"glossary": {"Geheim": []}}, "glossary, entry 1 must be words on one line"),
    ({"glossary": {"a": "b", " ": "Geheim"}}, "glossary, entry 2 must be words on one line"),
    ({"glossary": {"a": "Geheim\nGeheim"}}, "glossary, entry 1 must be words on one line"),
    ({"glossary": {"a": "Ge\x01heim"}}, "glossary, entry 1 has a control character"),
    ({"glossary": "Geheim"}, "glossary, line 1 must be a term, a tab and its translation"),
    ({"glossary": ["Geheim"]}, "glossary must be an object that maps"),
    ({"glossary": {"a": "Geheim" * 20}}, "glossary, entry 1 may have at most 100 characters"),
    ({"glossary": {f"Geheim{n}": "b" for n in range(150)}, "keep": ["a"] * 51}, "at most 200 entries together"),
    ({"keep": [""]}, "keep, entry 1 must be words on one line"),
    ({"keep": {"a": 1}}, "keep must be a list of words"),
    ({"phrases": ["a"] * 17}, "phrases may be at most 16"),
    ({"q": "a\nb", "phrases": ["a"]}, "must be one sentence without line breaks"),
    ({"q": "a b " * 300, "prefix": "b"}, "one sentence of at most 256 tokens"),
    ({"prefix": "b a " * 200}, "prefix may have at most 256 tokens"),
    ({"prefix": "b", "format": "html"}, "prefix and phrases go with plain text only"),
    ({"q": " ".join("abcdefghijklmnop") + " a", "glossary": {one: "k" + " k" * n for n, one in enumerate("abcdefghijklmnop")},
      "phrases": ["b"]}, "a sentence has more than 16 terms"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_wish_gets_one_line_that_does_not_quote_it(
    server: Running, fields: dict[str, Any], message: str
) -> None:
    answer = server.post("/translate", json={"q": "a b c", "source": "src", "target": "tgt", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error
    assert "Geheim" not in error and "\n" not in error


def test_a_word_that_the_vocabulary_cannot_spell_is_refused_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def phrase_of(tokenizer: Tokenizer, variants: tuple[str, ...], cases: tuple[str, ...]) -> None:
        if "Geheim" in variants:
            raise UserError(f"{variants} cannot be made to appear")

    monkeypatch.setattr("regard.serve.search.phrase_of", phrase_of)
    model = regard.load(GOLDEN, engine="torch", device="cpu")
    own = model._translator(model.options).text_side
    for search, message in (
        (
            SearchRequest(glossary=(("a", "b"), ("b", "Geheim"))),
            "glossary, entry 2 cannot be made to appear: the model's",
        ),
        (SearchRequest(phrases=("Geheim",)), "phrases, entry 1 cannot be made to appear"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            search.text_side(own, does_all=True)
        assert "Geheim" not in str(refused.value)


def test_a_wide_beam_gets_less_text_and_limits_can_be_changed(server: Running) -> None:
    body = {"q": "a " * 7_000, "source": "src", "target": "tgt", "beam": 16}
    for wide in (body, {**body, "beam": None, "groups": 16}, {**body, "groups": 16}):
        answer = server.post("/translate", json=wide)
        assert (answer.status_code, "at most 12500 characters" in answer.json()["error"]) == (413, True)
    with running("--limit", "beam=2", "--limit", "terms=1", "--limit", "term_characters=3") as strict:
        for fields, message in (
            ({"beam": 3}, "beam must be between 1 and 2"),
            ({"keep": ["a", "b"]}, "at most 1 entries"),
            ({"keep": ["abcd"]}, "at most 3 characters"),
        ):
            answer = strict.post("/translate", json={**body, "q": "a", "beam": 1, **fields})
            assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text
        document = strict.get("/openapi.json").json()
        schema = document["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"]["beam"]["maximum"] == 2
        assert schema["properties"]["alpha"]["maximum"] == 5


NEEDS_TORCH = ("glossary", "phrases", "coverage", "no_repeat", "max_repeat", "groups", "sample")


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: json.dumps(search))
def test_ctranslate2_alone_does_what_it_can_and_refuses_the_rest_by_name(fast: Running, search: dict[str, Any]) -> None:
    answer = fast.post("/translate", json={"q": TEXTS, "source": "src", "target": "tgt", **search})
    beyond = [name for name in NEEDS_TORCH if name in search]
    if not beyond:
        model = regard.load(GOLDEN, engine="ctranslate2")
        assert answer.json()["translatedText"] == model.translate(TEXTS, **search)
        return
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        f"{' and '.join(beyond)}: this server's engine, CTranslate2, cannot do it; "
        "leave it out, or start the server without --engine ctranslate2"
    )


BY_TORCH = {"q": "a b c", "source": "src", "target": "tgt", "glossary": {"b": "q"}}


@pytest.fixture
def torch_held(tmp_path: Path) -> tuple[Path, str]:
    """A file, and code that makes searches with torch wait as long as it exists."""
    hold = tmp_path / "hold"
    hold.touch()
    return hold, held_by(hold, "torch_engine.TorchEngine", "in_batches")


def test_plain_requests_do_not_wait_for_torch(torch_held: tuple[Path, str]) -> None:
    hold, code = torch_held
    with running(code=code) as server, ThreadPoolExecutor(1) as pool:
        held = pool.submit(server.post, "/translate", json=BY_TORCH)
        until(started(hold).exists)
        assert ask(server, "a b c") == {"translatedText": "c b a"}
        assert ask(server, "a b c", beam=8, keep=["b"]) == {"translatedText": "c b a"}
        assert ask(server, "p o n", glossary={"b": "q"}) == {"translatedText": "n o p"}  # it has no such term
        assert not held.done()
        hold.unlink()
        assert "q" in held.result().json()["translatedText"]


def test_a_search_with_torch_that_takes_too_long_is_given_up(torch_held: tuple[Path, str]) -> None:
    hold, code = torch_held
    with running("--limit", "seconds=0.2", code=code) as server:
        late = server.post("/translate", json=BY_TORCH)
        assert (late.status_code, "took longer than 0.2 s" in late.text) == (503, True)
        assert "regard_places_taken 0.0" in server.get("/metrics").text
        hold.unlink()
        until(lambda: server.post("/translate", json=BY_TORCH).status_code == 200)  # once it takes less


@pytest.fixture(scope="module")
def removed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model was removed before anything needed torch."""
    folder = tmp_path_factory.mktemp("removed") / "model"
    shutil.copytree(GOLDEN, folder)
    with running(model=folder) as server:
        shutil.rmtree(folder)
        yield server


@pytest.mark.parametrize("search", [{"glossary": {"b": "q"}}, {"sample": True}, {"phrases": ["q"]}], ids=str)
def test_a_model_that_is_not_there_any_more_is_said_and_not_where_it_was(
    removed: Running, search: dict[str, Any]
) -> None:
    for path in ("/translate", "/sentences"):
        answer = removed.post(path, json={"q": "a b c", "source": "src", "target": "tgt", **search})
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"].startswith("the model's files were removed or replaced while it was served")
    assert ask(removed, "a b c") == {"translatedText": "c b a"}
    assert ask(removed, "a b c", glossary={"b": "k"}) == {"translatedText": "c k a"}  # this takes no torch


def test_where_torch_is_not_installed_the_rest_is_served() -> None:
    with running(code="import sys; sys.modules['torch'] = None") as server:
        body = {"q": "a b c", "source": "src", "target": "tgt"}
        for path in ("/translate", "/sentences"):
            answer = server.post(path, json={**body, "sample": True})
            assert (answer.status_code, "needs torch, which is not installed here" in answer.text) == (501, True)
        assert ask(server, "a b c") == {"translatedText": "c b a"}


def test_torch_is_loaded_once_however_many_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CTranslate2Engine.from_bundle(load_bundle(GOLDEN))
    made: list[object] = []

    def from_bundle(*arguments: object) -> object:
        made.append(object())
        time.sleep(0.2)
        return made[-1]

    monkeypatch.setattr("regard.generate.engines.torch_engine.TorchEngine.from_bundle", from_bundle)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(engine._fallback_for, ["phrases"] * 4))
    assert found == made * 4


def test_choosing_for_nobody_ends_and_others_have_their_turn() -> None:
    begun: list[str] = []

    def work(name: str) -> str:
        begun.append(name)
        time.sleep(0.02)
        return name

    async def run() -> None:
        threads = ThreadPool("portions", 1, 2)
        long = asyncio.create_task(threads.run_each(work, ["a"] * 500))
        while not begun:
            await asyncio.sleep(0.001)
        assert await threads.run(work, "b") == "b"
        assert len(begun) < 10
        with pytest.raises(Busy):
            await asyncio.gather(*(threads.run(work, "c") for _ in range(2)))
        long.cancel()
        await asyncio.wait([long])
        assert await threads.run_each(work, ["d", "e"]) == ["d", "e"]
        assert len(begun) < 20 and not threads._entered
        threads.close()

    asyncio.run(run())


def test_ctranslate2_alone_never_loads_torch() -> None:
    with running("--engine", "ctranslate2", code="import sys; sys.modules['torch'] = None") as server:
        for search in SEARCHES:
            for path in ("/translate", "/sentences"):
                fields = {"q": "a b c", "source": "src", "target": "tgt", **search}
                assert server.post(path, json=fields).status_code in (200, 400)
        form = {"source": "src", "target": "tgt", "glossary": "b\tq"}
        answer = server.post("/translate_file", data=form, files={"file": ("a.txt", b"a b\n")})
        assert (answer.status_code, "glossary: this server's engine" in answer.json()["error"]) == (400, True)
        assert not any("failure" in line for line in server.stop())


def test_logs_are_lines_of_json_without_glossaries() -> None:
    with running() as server:
        for search in SEARCHES:
            ask(server, TEXTS, **search)
        ask(server, "a b c", glossary={"Geheimwort": "q"}, keep=["Geheimwort"])
        server.post(
            "/translate", json={"q": "a", "source": "src", "target": "tgt", "glossary": {"a": "Geheimwort" * 99}}
        )
        lines = server.stop()
    for line in lines:
        json.loads(line)
    assert "Geheimwort" not in "".join(lines)
