from __future__ import annotations

import gzip
import lzma
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.corpus import Corpus, brace_labels, has_tabs, name_files, read_lines, resolve, resolve_all
from regard.errors import UserError

zstandard = pytest.importorskip("zstandard")  # a machine with a GPU may lack it
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
lines_of_text = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_lines_come_out_of_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(COMPRESS[suffix]("one\n\nzwölf\r\nlast".encode()))
    assert list(read_lines(path)) == ["one", "", "zwölf", "last"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(lines_of_text))
def test_only_a_newline_ends_a_line(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"first\n" + "".join(line + "\r\n" for line in lines).encode())
    assert list(read_lines(path)) == ["first", *lines]


def test_exotic_separators_and_lone_carriage_returns_stay_in_the_line(tmp_path: Path) -> None:
    line = "a\u2028b\x0bc\x85d\x1ce\rf\x0c"
    path = tmp_path / "text"
    path.write_bytes((line + "\n" + line + "\r").encode())
    assert list(read_lines(path)) == [line, line + "\r"]


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert list(read_lines(path)) == ["one", "\ufefftwo"]


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [("docx", "a ZIP archive or an Office document"), ("utf-16", "text in UTF-16"), ("gz", "a gzip file")],
)
def test_what_people_take_for_text_is_named(tmp_path: Path, suffix: str, kind: str) -> None:
    path, text = tmp_path / "story.txt", "It was a dark and stormy night. Größe!\n" * 20
    if suffix == "docx":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/document.xml", text)
    else:
        path.write_bytes(gzip.compress(text.encode()) if suffix == "gz" else text.encode("utf-16"))
    with pytest.raises(UserError, match=f"story.txt: must be a text file in UTF-8, but is {kind}; "):
        list(read_lines(path))


def test_invalid_utf8_is_refused_with_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin1.de"
    path.write_bytes(b"gut\nsch\xf6n\n")
    with pytest.raises(UserError, match=r"latin1\.de, line 2: is not valid UTF-8 \(byte 0xf6 .*save the file as UTF-8"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_compressed_file_is_refused_by_name(tmp_path: Path, suffix: str, damage: str) -> None:
    content = COMPRESS[suffix]("".join(f"line {i * i}\n" for i in range(1000)).encode())
    path = tmp_path / f"train.en{suffix}"
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"this is not compressed at all")
    with pytest.raises(UserError, match=rf"train\.en\{suffix}: must be a complete"):
        list(read_lines(path))


def test_several_zstandard_frames_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "text.zst"
    path.write_bytes(zstandard.compress(b"one\ntw") + zstandard.compress(b"o\n"))
    assert list(read_lines(path)) == ["one", "two"]


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.zst"
    path.write_bytes(zstandard.compress(b"one\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match=r"text\.zst: .*pip install zstandard"):
        list(read_lines(path))


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: there is no such file"):
        list(read_lines(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="is a folder"):
        list(read_lines(tmp_path))


def test_a_name_that_is_too_long_is_refused_in_a_short_line(tmp_path: Path) -> None:
    for name in ("x" * 100_000, "x[" * 50_000, "x*" * 300):
        with pytest.raises(UserError) as error:
            resolve_all(name, tmp_path, "en", "de")
        assert len(str(error.value)) < 2000, name[:10]


def test_two_files_of_unequal_length_are_refused_with_both_counts(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("x\n" * 1002)
    (tmp_path / "a.de").write_text("x\n" * 3)
    with pytest.raises(UserError, match=r"a\.en and .*a\.de: .* have 1,002 and 3;"):
        list(Corpus("a", tmp_path / "a.en", tmp_path / "a.de").pairs())
    with pytest.raises(UserError, match=r"a\.de and .*a\.en: .* have 3 and 1,002;"):
        list(Corpus("a", tmp_path / "a.de", tmp_path / "a.en").pairs())


def test_empty_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.en", "a.de", "a.tsv"):
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match="are empty"):
        list(Corpus("a", tmp_path / "a.en", tmp_path / "a.de").pairs())
    with pytest.raises(UserError, match=r"a\.tsv: .* is empty"):
        list(Corpus("a", tmp_path / "a.tsv", None).pairs())


def test_tab_separated_pairs_ignore_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\ntwo\tzwei\tCC-BY\t7\n\t\n")
    said: list[str] = []
    assert list(Corpus("a", path, None).pairs(said.append)) == [("one", "eins"), ("two", "zwei"), ("", "")]
    [note] = said
    assert note.endswith(
        "only the first two columns are used, source and target; more are on 1 of 3 lines, first on line 2"
    )


def test_a_line_without_a_tab_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\ntwo zwei\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 2: must hold source<TAB>target, but has no tab \('two zwei'\)"):
        list(Corpus("a", path, None).pairs())


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x\n")


def test_braces_name_the_source_file_and_then_the_target_file(tmp_path: Path) -> None:
    touch(tmp_path, "x.en.xz", "x.de.xz", "en/y.en", "de/y.de")
    corpus = resolve("x.{en,de}.xz", tmp_path, "en", "de", weight=2.0)
    assert corpus == Corpus("x.{en,de}.xz", tmp_path / "x.en.xz", tmp_path / "x.de.xz", 2.0)
    assert resolve("{en,de}/y.{en,de}", tmp_path, "en", "de").files == [tmp_path / "en/y.en", tmp_path / "de/y.de"]
    # Labels are free: only the exact reverse is a mistake.
    assert resolve("x.{en,de}.xz", tmp_path, "english", "german").source == tmp_path / "x.en.xz"
    assert resolve(str(tmp_path / "x.{en,de}.xz"), Path("/elsewhere"), "en", "de").source == tmp_path / "x.en.xz"


def test_a_name_without_braces_is_one_file_with_tabs(tmp_path: Path) -> None:
    touch(tmp_path, "x.tsv.gz")
    assert resolve("x.tsv.gz", tmp_path, "en", "de") == Corpus("x.tsv.gz", tmp_path / "x.tsv.gz", None)


def test_swapped_or_malformed_braces_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "x.en", "x.de")
    with pytest.raises(UserError, match=r"source side must come first; write \{en,de\}"):
        resolve("x.{de,en}", tmp_path, "en", "de")
    for spec in ("x.{en}", "x.{en,de,fr}", "x.{en,en}"):
        with pytest.raises(UserError, match="braces must hold the two sides"):
            resolve(spec, tmp_path, "en", "de")
    with pytest.raises(UserError, match="name is empty"):
        resolve(" ", tmp_path, "en", "de")


def test_a_missing_side_is_reported_when_the_name_is_resolved(tmp_path: Path) -> None:
    touch(tmp_path, "x.en")
    with pytest.raises(UserError, match=r"x\.de: there is no such file"):
        resolve("x.{en,de}", tmp_path, "en", "de")


def test_wildcards_pair_the_files_of_both_sides_in_order(tmp_path: Path) -> None:
    touch(tmp_path, *(f"part-{i}.{side}.xz" for i in (2, 0, 1) for side in ("en", "de")), "other.en.xz")
    found = resolve_all("part-?.{en,de}.xz", tmp_path, "en", "de", weight=0.5)
    assert [corpus.name for corpus in found] == [f"part-{i}.{{en,de}}.xz" for i in range(3)]
    assert [corpus.target for corpus in found] == [tmp_path / f"part-{i}.de.xz" for i in range(3)]
    assert found[0].weight == 0.5
    assert len(resolve_all("part-[01].{en,de}.xz", tmp_path, "en", "de")) == 2
    assert len(resolve_all(str(tmp_path / "p*.{en,de}.xz"), Path("."), "en", "de")) == 3
    with pytest.raises(UserError, match="must name one corpus, but matches 3"):
        resolve("part-*.{en,de}.xz", tmp_path, "en", "de")


def test_wildcards_without_a_match_or_without_a_counterpart_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a-1.en", "a-1.de", "a-2.de")
    with pytest.raises(UserError, match="must match at least one file"):
        resolve_all("b-*.{en,de}", tmp_path, "en", "de")
    with pytest.raises(UserError, match=r"a-2\.\{en,de\} has only one of the two"):
        resolve_all("a-*.{en,de}", tmp_path, "en", "de")


def test_a_file_that_is_really_called_like_a_wildcard_is_taken(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].tsv")
    assert resolve("a[1].tsv", tmp_path, "en", "de").source == tmp_path / "a[1].tsv"


def test_a_new_corpus_is_named_as_a_recipe_names_it() -> None:
    assert name_files("a/x.{en,de}.xz", "en", "de") == [Path("a/x.en.xz"), Path("a/x.de.xz")]
    assert name_files("~/x.tsv", "en", "de") == [Path("~/x.tsv").expanduser()]
    with pytest.raises(UserError, match=r"x\.gz': must name two files as NAME\.\{en,de\} or one as NAME\.tsv"):
        name_files("x.gz", "en", "de")
    with pytest.raises(UserError, match=r"the source side must come first; write \{en,de\}"):
        name_files("x.{de,en}", "en", "de")


def test_the_labels_in_braces_are_given_as_they_stand() -> None:
    assert brace_labels("{en, de}/x.{fr,it}.gz") == [("en", "de"), ("fr", "it")]
    assert brace_labels("x.tsv") == []
    with pytest.raises(UserError, match=r"must hold the two sides as \{source,target\}, but hold \{en,de,fr\}"):
        brace_labels("x.{en,de,fr}")


def test_names_say_whether_there_are_tabs() -> None:
    assert has_tabs("x.tsv") and has_tabs("a.b/x.TSV") and has_tabs("x.tsv.zst")
    assert not has_tabs("x.gz") and not has_tabs("x.tsv.de") and not has_tabs("tsv")
