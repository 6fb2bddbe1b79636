"""Tables and words with tags: which columns they have, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from regard.data.columns import Columns, find_columns
from regard.data.labelled import (
    TableCorpus,
    WordsCorpus,
    decode_number,
    encode_label,
    find_words,
    table_sample,
)
from regard.data.split import hold_out_by_label, sentence_key
from regard.data.tables import read_rows
from regard.errors import UserError


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def found(path: Path, **given: Any) -> Columns:
    return find_columns(path, table_sample(path), **given)


def many(*rows: str, times: int = 4) -> list[str]:
    return [row.replace("#", str(n)) for n in range(times) for row in rows]


CASES = {
    "label first": ("a.tsv", many("greet\thello you # there", "leave\tbye # my friend"), Columns(("2",), "1", False, "one")),
    "label last": ("a.csv", many('"hello, # you",greet', "bye # you,leave"), Columns(("1",), "2", False, "one")),
    "header": ("a.tsv", ["text\tlabel", *many("hello # you\tgreet", "bye # now\tleave")], Columns(("text",), "label", True, "one")),
    "known names and others": (
        "a.csv",
        ["id,sentence1,sentence2,score", *many("7,one # cat,two dogs,0.5", "8,a # house,my # home,4.5")],
        Columns(("sentence1", "sentence2"), "score", True, "number"),
    ),
    "pairs with numbers": ("a.tsv", many("5.0\ta plane # flies\tan air # plane", "3.8\ta man # plays\ta woman # sings"),
                           Columns(("2", "3"), "1", False, "number")),
    "few whole numbers are labels": ("a.tsv", many("0\tit is # bad", "1\tit is # good"), Columns(("2",), "1", False, "one")),
    "a header with names of its own": (
        "a.csv", ["Satz,die Klasse", *many("hello # you,greet", "bye # you,leave", times=15)],
        Columns(("Satz",), "die Klasse", True, "one"),
    ),
    "a header and columns without names": (
        "a.csv", ["Satz,,die Klasse,,", *many("hello # you,,greet,,", "bye # you,,leave,,", times=15)],
        Columns(("Satz",), "die Klasse", True, "one"),
    ),
    "no header, and a column without text": (
        "a.csv", many("no,it is # bad,", "yes,it is # good,"), Columns(("2",), "1", False, "one"),
    ),
    "no header, and a first label that is missing": (
        "a.tsv", ["\tso it is", *many("red\ta # thing", "blue\tmy # thing", times=15)], Columns(("2",), "1", False, "one"),
    ),
    "no header, but a column of names": (
        "a.csv", many("q#,en,hello there # you,greet", "q#,de,bye # my friend,leave", times=15),
        Columns(("3",), "2", False, "one"),
    ),
    "a first label that is rare": ("a.tsv", ["rare\tso it is", *many("red\ta # thing", "blue\tmy # thing", times=15), "once\tx y"],
                                   Columns(("2",), "1", False, "one")),
    "several labels": ("a.tsv", many("red|big\ta # thing", "red\tmy # thing", "big|old\tan # thing", "old\tone # thing"),
                       Columns(("2",), "1", False, "several", "|")),
    "JSON": ("a.jsonl", [json.dumps({"text": f"so {n} it is", "label": "ab"[n % 2]}) for n in range(6)],
             Columns(("text",), "label", False, "one")),
    "a list in JSON": ("a.jsonl", [json.dumps({"body": f"so {n} it is", "topics": ["x", "y"][: n % 3]}) for n in range(6)],
                       Columns(("body",), "topics", False, "several")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_columns_are_found(name: str, tmp_path: Path) -> None:
    file, lines, wanted = CASES[name]
    assert found(write(tmp_path / file, *lines)) == wanted


def test_a_wrong_name_is_answered_with_the_names_of_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "review,my sentiment", "so good,yes", "so bad,no")
    with pytest.raises(UserError, match=r"a.csv: has no column 'sentiment', but review, my sentiment; name one"):
        found(path, text=["review"], label="sentiment")


def test_columns_are_said_and_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", *many("greet\tx y #\thello you # there", "leave\tz # y\tbye # my friend now"))
    columns = found(path, text=["2"])
    assert columns == Columns(("2",), "1", False, "one")
    said = columns.say(path, table_sample(path))
    assert said == "a.tsv: label: column 1 (greet, leave), text: column 2; no header; not used: column 3"
    assert found(path).text == ("2", "3")
    with pytest.raises(UserError, match=r"a.tsv: has no column 'title', but column 1, column 2, column 3"):
        found(path, header=False, text=["title"])
    with pytest.raises(UserError, match="both are column 1"):
        found(path, text=["1"], label="1")
    path = write(tmp_path / "b.csv", "text,label,", *many("hello # you,greet,", "bye # now,leave,"))
    said = found(path).say(path, table_sample(path))
    assert said.endswith("text: text; the first line names the columns; not used: column 3")


def test_named_columns_can_be_given_by_number(tmp_path: Path) -> None:
    lines = many("hello # you,greet", "bye # now,leave")
    for path in (
        write(tmp_path / "a.csv", "text,label", *lines),
        write(
            tmp_path / "a.jsonl",
            *(json.dumps(dict(zip(("text", "label"), line.split(","), strict=True))) for line in lines),
        ),
    ):
        is_csv = path.suffix == ".csv"
        wanted = Columns(("text",), "label", is_csv, "one")
        assert found(path, label="2") == found(path, text=["1"]) == found(path, text=["1"], label="2") == wanted
        with pytest.raises(UserError, match="both are label"):
            found(path, text=["2"], label="label")
        with pytest.raises(UserError, match="besides the text, but --text names all of them"):
            found(path, text=["text", "label"])
        with pytest.raises(UserError, match="has no column 'title', but text, label; name one"):
            found(path, text=["title"])
    unnamed = write(tmp_path / "b.csv", ",label", *lines)
    assert found(unnamed, text=["1"], label="2") == Columns(("1",), "label", True, "one")


def test_spaces_around_the_names_of_columns_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text, label ", *many("hello # you, greet", "bye # now, leave"))
    used = found(path, label="label")
    assert used == found(path) == Columns(("text",), "label", True, "one")
    records = list(TableCorpus("a", (path,), used, ("greet", "leave")).records())
    assert {label for record in records for label in record.texts[1:]} == {"0", "1"}


@pytest.mark.parametrize("pack", [lzma.open, gzip.open])
def test_packed_tables_are_read(pack: object, tmp_path: Path) -> None:
    path = tmp_path / ("a.csv.xz" if pack is lzma.open else "a.csv.gz")
    with pack(path, "wt", encoding="utf-8") as file:  # type: ignore[operator]
        file.write('label,text\nx,"two\nlines, and ""quotes"""\n\ny,one\n')
    assert [(row.number, row.cells) for row in read_rows(path)] == [
        (1, ("label", "text")), (2, ("x", 'two\nlines, and "quotes"')), (5, ("y", "one"))
    ]  # fmt: skip


WRONG = {
    "a column is missing": ("x\tone\nalone\n", "a.tsv, line 2: must have the text in column 2, but has 1 column"),
    "another label": (
        "x\tone\nz\ttwo\n",
        "a.tsv, line 2: the label 'z' is not one of the 2 labels of the model; known: x, y",
    ),
    "a typing mistake": ("x\tone\nxx\ttwo\n", "did you mean 'x'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_refused_by_file_and_line(name: str, tmp_path: Path) -> None:
    content, wanted = WRONG[name]
    (tmp_path / "a.tsv").write_text(content, encoding="utf-8")
    corpus = TableCorpus("a", (tmp_path / "a.tsv",), Columns(("2",), "1", False, "one"), ("x", "y"))
    with pytest.raises(UserError) as error:
        list(corpus.records())
    assert wanted in str(error.value)


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "-1e30", "two"])
def test_a_number_that_is_none_or_too_large_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "1.5\tone", f"{text}\ttwo")
    corpus = TableCorpus("a", (path,), Columns(("2",), "1", False, "number"), ("score",))
    wanted = f"line 2: the label must be a number, as on other lines, of at most 1e.18, but is '{text}'"
    with pytest.raises(UserError, match=wanted):
        list(corpus.records())


def test_labels_survive_the_store() -> None:
    assert [encode_label(text) for text in ("0", "2 7", "-")] == [[0], [2, 7], []]
    for value in (0.0, -3.75, 1e-3, 12345.678):
        assert decode_number(encode_label(f"={value!r}")) == pytest.approx(value, rel=1e-7)


def test_a_json_object_is_neither_a_text_nor_a_label(tmp_path: Path) -> None:
    rows = [{"meta": {"id": n}, "text": f"so {n} it is", "label": "ab"[n % 2]} for n in range(6)]
    path = write(tmp_path / "a.jsonl", *map(json.dumps, rows))
    assert found(path) == Columns(("text",), "label", False, "one")  # an unused column may hold anything
    message = (
        r"a.jsonl, line 1: meta must be a label or a list of labels, but is \{.*; name another column with --label"
    )
    with pytest.raises(UserError, match=message):
        found(path, label="meta")
    write(path, *(json.dumps({"label": {"name": "a"}, "text": f"so {n} it is"}) for n in range(6)))
    with pytest.raises(UserError, match=r"line 1: label must be a label or a list of labels"):
        found(path)
    write(path, *map(json.dumps, rows))
    with pytest.raises(UserError, match=r"line 1: meta must be a text, but is .*; name another column with --text"):
        found(path, text=["meta"])
    for cell in ({"name": "a"}, [["a"]]):  # beyond the rows that are looked at
        write(path, *map(json.dumps, [*rows, {"text": "so", "label": cell}]))
        corpus = TableCorpus("a", (path,), Columns(("text",), "label", False, "one"), ("a", "b"))
        with pytest.raises(UserError, match=r"a.jsonl, line 7: label must be a label or a list of labels, but is"):
            list(corpus.records())


def test_lines_of_conllu_are_those_of_the_file(tmp_path: Path) -> None:
    def word(number: int | str, form: str, tag: str) -> str:
        return "\t".join([str(number), form, "_", tag, *"______"])

    rest = [word("1-2", "don't", "_"), word(1, "do", "AUX"), word("1.1", "so", "_"), word(2, "n't", "PART")]
    path = write(
        tmp_path / "a.conllu", "# text = x", word(1, "x", "X"), "", "# sent_id = 2", *rest, "# late", word(3, "go", "V")
    )
    first, second = WordsCorpus("a", (path,)).sentences()
    assert (first.lines, second.lines, second.words) == ([2], [6, 8, 10], ["do", "n't", "go"])
    assert [record.number for record in WordsCorpus("a", (path,), labels=("X", "AUX", "PART", "V")).records()] == [2, 6]
    with pytest.raises(UserError, match=r"a.conllu, line 10: the label 'V'"):
        list(WordsCorpus("a", (path,), labels=("X", "AUX", "PART")).records())


def test_words_and_tags_of_all_forms(tmp_path: Path) -> None:
    two = write(tmp_path / "a.conll", "# a comment", "#tag\tX", "runs\tV", "", "", "x y\tN")
    four = write(tmp_path / "b.conll", "-DOCSTART- -X- -X- O", "", "EU NNP B-NP B-ORG", "rejects VBZ B-VP O", "")
    ten = write(
        tmp_path / "c.conllu", "# text = don't", "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tdo\tdo\tAUX\tVB\t_\t0\troot\t_\t_", "2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_",
    )  # fmt: skip
    assert [rest for _, *rest in WordsCorpus("a", (two,)).sentences()] == [
        [[2, 3], ["#tag", "runs"], ["X", "V"]], [[6], ["x y"], ["N"]]
    ]  # fmt: skip
    assert [words[2:] for words in WordsCorpus("b", (four,)).sentences()] == [(["EU", "rejects"], ["B-ORG", "O"])]
    assert [words[2:] for words in WordsCorpus("c", (ten,)).sentences()] == [(["do", "n't"], ["AUX", "PART"])]
    sign = write(tmp_path / "e.conll", "#\tX", "1\tV", "", "# a comment with a\ttab", "x\tN")
    assert [words[2:] for words in WordsCorpus("e", (sign,)).sentences()] == [(["#", "1"], ["X", "V"]), (["x"], ["N"])]
    by_number = find_words(str(four), Path(), ["1"], "2", ())
    assert next(by_number.sentences())[3] == ["NNP", "VBZ"]
    write(tmp_path / "d.conll", "a\tX", "alone")
    with pytest.raises(UserError, match=r"d.conll, line 2: must have a word, a tab and its tag, but is 'alone'"):
        list(WordsCorpus("d", (tmp_path / "d.conll",)).sentences())


def test_of_each_label_the_same_share_is_held_out() -> None:
    records = [(f"text number {n}", "0" if n % 4 else "1") for n in range(400)]
    records += [("rare one", "2"), ("Text, number 3!", "0")]
    chosen = hold_out_by_label(records, 40, 40, seed=3, most=0.4)
    for part in (chosen.valid, chosen.test):
        labels = [label for _, label in part]
        assert len(part) == 40 and labels.count("0") == 30 and labels.count("1") == 10
    assert not {text for text, _ in chosen.valid} & {text for text, _ in chosen.test}
    held = {sentence_key(text) for text, _ in (*chosen.valid, *chosen.test)}
    assert "rareone" not in held  # a label keeps its last text
    [text, label] = chosen.valid[0]
    # Another text with the same label may be trained on; the same text with another label may not.
    assert not chosen.is_held_out("a text of its own", label) and chosen.is_held_out(text.upper() + "!", "5")
    assert hold_out_by_label(records, 40, 40, seed=3, most=0.4).valid == chosen.valid
    assert hold_out_by_label(records, 40, 40, seed=4, most=0.4).valid != chosen.valid


def test_a_table_without_enough_texts_of_any_label_is_refused() -> None:
    records = [("good day", "0"), ("bad day", "1"), ("fine day", "0")]
    with pytest.raises(UserError, match="must have a label with more than 2 different texts"):
        hold_out_by_label(records, 1, 1)
    assert len(hold_out_by_label(records, 1, 0).valid) == 1


def test_numbers_are_held_out_from_all_sizes() -> None:
    records = [(f"text number {n}", f"={float(n)!r}") for n in range(100)]
    chosen = hold_out_by_label(records, 10, 0)
    assert sorted(int(float(label[1:]) // 20) for _, label in chosen.valid) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
