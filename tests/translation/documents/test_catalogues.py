"""Files with texts of programs and of translators, notebooks and subtitles of the web: values change, all other bytes stay."""

from __future__ import annotations

import json

import pytest
import yaml

from regard.errors import InputError, InputTooLarge
from regard.translation.documents.readers import open_document
from tests.translation.documents.test_documents import MOST, shouted


def in_german(data: str, kind: str) -> str:
    """The document with every sentence in upper case, as if that were German."""
    document = open_document(data.encode(), kind, MOST, None, "de")
    plans = document.plans("en")
    return document.save([plan.join([one.upper() for one in plan.sentences]) for plan in plans]).decode()


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (
            "json",
            '{\n\t"save": "save it", "n": 1.50, "list": ["a b", {"deep": "c d"}],\r\n "url": "https://x.y", "k": "app.title"}\n',
            '{\n\t"save": "SAVE IT", "n": 1.50, "list": ["A B", {"deep": "C D"}],\r\n "url": "https://x.y", "k": "app.title"}\n',
        ),
        ("json", '{"a": "caf\\u00e9 \\"x\\"", "b": "naïve"}', '{"a": "CAF\\u00c9 \\"X\\"", "b": "NAÏVE"}'),
        ("json", '{"a": "{n, plural, one {# file} other {# files}}", "b": "", "c": null}', None),
        ("json", '"one text"', '"ONE TEXT"'),
        ("json", '{"a": "click <b>here</b> now"}', '{"a": "CLICK <b>HERE</b> NOW"}'),
        (
            "yaml",
            "# c\ne:\n  save: save it   # why\n  'quoted': 'it''s'\n  two: \"a \\n b\"\n  yes: on\n  n: 12\n  list: [one, two b]\n",
            "# c\ne:\n  save: SAVE IT   # why\n  'quoted': 'IT''S'\n  two: \"A \\n B\"\n  yes: on\n  n: 12\n  list: [ONE, TWO B]\n",
        ),
        ("yml", "a: |\n  one\n\n  two\n\nb: >-\n  three\n  four\n", "a: |\n  ONE\n\n  TWO\n\nb: >-\n  THREE FOUR\n"),
        ("yaml", "a: &x text\nb: *x\nc: !own text\nd: !!str 12 x\n", "a: &x TEXT\nb: *x\nc: !own text\nd: !!str \"12 X\"\n"),
        ("yaml", "- a, b\n- [c, 'd, e']\n", "- A, B\n- [C, 'D, E']\n"),
        (
            "vtt",
            "WEBVTT - title\n\nSTYLE\n::cue { color: red }\n\nNOTE so\n\nintro\n00:01.000 --> 00:02.000 align:start\n<v Bob>hello "
            "<00:01.500>you\n\n00:00:03.000 --> 00:00:04.000\na <i>b</i>\nc\n",
            "WEBVTT - title\n\nSTYLE\n::cue { color: red }\n\nNOTE so\n\nintro\n00:01.000 --> 00:02.000 align:start\n<v Bob>HELLO "
            "<00:01.500>YOU\n\n00:00:03.000 --> 00:00:04.000\nA <i>B</i>\nC\n",
        ),
        (
            "ipynb",
            '{\n "cells": [\n  {\n   "cell_type": "markdown",\n   "source": [\n    "# head\\n",\n    "a *b* `c`"\n   ]\n  },\n'
            '  {"cell_type": "code", "source": ["x = \'text\'"], "outputs": [{"text": ["out"]}]},\n'
            '  {"source": "more\\n", "cell_type": "markdown"}\n ], "metadata": {}, "nbformat": 4\n}\n',
            '{\n "cells": [\n  {\n   "cell_type": "markdown",\n   "source": [\n    "# HEAD\\n",\n    "A *B* `c`"\n   ]\n  },\n'
            '  {"cell_type": "code", "source": ["x = \'text\'"], "outputs": [{"text": ["out"]}]},\n'
            '  {"source": "MORE\\n", "cell_type": "markdown"}\n ], "metadata": {}, "nbformat": 4\n}\n',
        ),
    ],
)  # fmt: skip
def test_values_change_and_the_rest_stays(kind: str, before: str, after: str | None) -> None:
    assert shouted(before.encode(), kind).decode() == (before if after is None else after)


@pytest.mark.parametrize(
    "text", ["no", "12", "a: b", "- x", "'", '"', "a # b", "x\ny", "[a]", "a, b", "ü & <x>", "{n}", "true x"]
)
def test_whatever_the_translation_is_the_yaml_says_it(text: str) -> None:
    for before in ("k: word\n", "k: 'word'\n", 'k: "word"\n', "k: [word, 1]\n", "k: {x: word}\n", "- word\n"):
        document = open_document(before.encode(), "yaml", MOST)
        after = yaml.safe_load(document.save([text]))
        assert json.dumps(after) == json.dumps(yaml.safe_load(before)).replace('"word"', json.dumps(text)), before


XLIFF_1 = """<?xml version='1.0' encoding='UTF-8' standalone='yes'?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><file source-language="en"{language}><body>
<trans-unit id="1"><source>a <g id="1">b</g> <x id="2"/> c</source>{first}</trans-unit>
<trans-unit id="2"><source>done</source><target>fertig</target></trans-unit>
<trans-unit id="3" translate="no"><source>kept</source></trans-unit>
<trans-unit id="4"><source>e <ph id="1">code</ph> f</source>{second}</trans-unit>
</body></file></xliff>"""


def test_empty_targets_are_filled_in() -> None:
    after = XLIFF_1.format(
        language=' target-language="de"',
        first='<target>A <g id="1">B</g> <x id="2"/> C</target>',
        second='<target state="new">E <ph id="1">code</ph> F</target>',
    )
    assert in_german(XLIFF_1.format(language="", first="", second='<target state="new"/>'), "xliff") == after
    two = (
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><file><unit><segment>'
        "<source>a <pc id='1'>b</pc></source></segment></unit></file></xliff>"
    )
    result = in_german(two, "xlf")
    assert '<target>A <pc id="1">B</pc></target></segment>' in result and 'trgLang="de"' in result
    with pytest.raises(InputError, match="for the target language of the model"):
        open_document(
            XLIFF_1.format(language=' target-language="fr"', first="", second="").encode(), "xliff", MOST, None, "de"
        )


def test_units_get_the_language_that_they_lack() -> None:
    before = (
        "<?xml version='1.0' encoding='UTF-8' standalone='yes'?>\n<!DOCTYPE tmx SYSTEM \"tmx14.dtd\">\n"
        '<tmx version="1.4"><header srclang="en-US"/><body>\n<tu><tuv xml:lang="fr"><seg>oui</seg></tuv>'
        '<tuv xml:lang="EN-us"><prop>x</prop><seg>yes <bpt i="1">&lt;b></bpt>sir<ept i="1"/></seg></tuv></tu>'
        '<tu><tuv xml:lang="en"><seg>no</seg></tuv><tuv xml:lang="de-DE"><seg>nein</seg></tuv></tu></body></tmx>'
    )
    after = in_german(before, "tmx")
    added = '<tuv xml:lang="de"><seg>YES <bpt i="1">&lt;b&gt;</bpt>SIR<ept i="1"/></seg></tuv>'
    assert after.replace(added, "") == before.replace("&lt;b>", "&lt;b&gt;") and added in after


TOOLKIT = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header srclang="en"/>
  <body>
    <tu>
      <tuv xml:lang="en">
        <seg>close</seg>
      </tuv>{added}
    </tu>
  </body>
</tmx>"""


def test_what_surrounds_the_units_stays_as_it_is_written() -> None:
    added = '\n      <tuv xml:lang="de">\n        <seg>CLOSE</seg>\n      </tuv>'
    assert in_german(TOOLKIT.format(added=""), "tmx") == TOOLKIT.format(added=added)
    plain = TOOLKIT.partition("\n")[2]
    assert in_german(plain.format(added=""), "tmx") == '<?xml version="1.0" encoding="UTF-8"?>\n' + plain.format(
        added=added
    )


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_becomes_utf_8(encoding: str) -> None:
    text = "\ufeff" + TOOLKIT.format(added="").replace("utf-8", "utf-16")
    after = shouted(text.encode(encoding), "tmx").decode()
    assert after.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx') and "<seg>CLOSE</seg>" in after
    hostile = '\ufeff<?xml version="1.0" encoding="utf-16"?><!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>'
    with pytest.raises(InputError, match="entities"):
        open_document(hostile.encode(encoding), "tmx", MOST)
    with pytest.raises(InputError, match="UTF-8"):
        open_document(hostile.encode(encoding) + b"\0", "tmx", MOST)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"{", "json", "valid JSON"),
        (b"[" * 1_000_000, "json", "valid JSON"),
        (b'{"a": "' + b"\\\\" * 1_000_000, "json", "valid JSON"),
        (b'{"cells": 1}', "ipynb", "notebook of format 4"),
        (b'{"cells": [{"cell_type": "markdown", "source": [1]}]}', "ipynb", "notebook of format 4"),
        (b"a: [", "yaml", "valid YAML; look at line"),
        (b"a: \x01", "yaml", "valid YAML"),
        (b"<xliff>", "xliff", "well-formed"),
        (b"<x/>", "tmx", "must be TMX"),
        (b'<!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>', "tmx", "entities"),
        (b'<!DOCTYPE tmx SYSTEM "x" [<!ENTITY a "b">]><tmx/>', "tmx", "entities"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_document(data, kind, MOST)


def test_yaml_expands_no_references_and_has_a_limit() -> None:
    bomb = "a: &a [x y, x y]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert open_document(bomb.encode(), "yaml", MOST).texts == ["x y", "x y"]
    with pytest.raises(InputTooLarge, match="at most 2000000 characters"):
        open_document(b"a: b\n" * 500_000, "yaml", MOST)
