"""Claims about `regard augment`: which side is whose, what is kept, and that an interruption leaves no trace in the result."""

from __future__ import annotations

import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import regard.augment
from regard import Model, load
from regard.augment import Filter, augment_corpus, noise_corpus
from regard.cli import main
from regard.data.corpus import read_lines, resolve
from regard.errors import Interrupted, UserError
from regard.evaluate import sentence_scorer
from regard.files import MANIFEST, sha256
from regard.translation.noise import KINDS, make_kinds, noise
from tests.commands import Process, fails, finished, fork, together, wait_until
from tests.tiny import LETTERS, make_bundle, reversal_pairs

GOLDEN = str(Path(__file__).parent / "golden" / "bundle-1")  # src -> tgt: it reverses letters, most of the time
LOOPS = "d d d o f e"  # the golden model answers with d upon d
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Model, "chunk", 7)
    return 7


def write(name: str, lines: list[str]) -> list[str]:
    data = "".join(f"{line}\n" for line in lines).encode()
    Path(name).write_bytes(lzma.compress(data) if name.endswith(".xz") else data)
    return lines


def write_sides(stem: str, count: int = 40, seed: int = 1) -> list[tuple[str, str]]:
    pairs = reversal_pairs(count, seed)
    write(f"{stem}.src", [src for src, _ in pairs])
    write(f"{stem}.tgt", [tgt for _, tgt in pairs])
    return pairs


def command(way: str, output: str, *inputs: str, model: str = GOLDEN) -> list[str]:
    named = [word for name in inputs for word in ("-i", name)]
    return ["augment", f"--{way}", "-m", model, "--device", "cpu", *named, "-o", output]


def succeeds(*arguments: str) -> None:
    assert main(arguments) == 0


def pairs_of(spec: str, source: str = "src", target: str = "tgt") -> list[tuple[str, str]]:
    return list(resolve(spec, Path(), source, target).pairs())


def translations(lines: list[str]) -> list[str]:
    answer = load(GOLDEN, device="cpu").translate(lines)
    assert isinstance(answer, list)
    return answer


# --- sides and files ---


@pytest.mark.parametrize("output", ["new.{src,tgt}", "new.{src,tgt}.xz", "new.{src,tgt}.gz", "new.tsv", "new.tsv.zst"])
def test_distilled_text_has_the_sources_and_their_translations(output: str) -> None:
    sources = [src for src, _ in write_sides("old")]
    succeeds(*command("distill", output, "old.{src,tgt}"))
    assert pairs_of(output) == list(zip(sources, translations(sources), strict=True))
    assert sorted(path.name for path in Path().iterdir() if not path.name.startswith("old")) == sorted(
        output.replace("{src,tgt}", side) for side in (["src", "tgt"] if "{" in output else [""])
    )


def test_back_translated_text_has_the_text_as_its_target_and_the_translation_as_its_source() -> None:
    # The golden model reads src, so that the new corpus is for a model tgt -> src.
    texts = write("mono.src.xz", [src for src, _ in reversal_pairs(30, 2)])
    expected = list(zip(translations(texts), texts, strict=True))
    succeeds(*command("back-translate", "new.{tgt,src}.xz", "mono.src.xz"))
    assert pairs_of("new.{tgt,src}.xz", "tgt", "src") == expected
    # Of a parallel corpus it is the target side that is translated.
    write("both.src", texts)
    write("both.tgt", ["not this" for _ in texts])
    succeeds(*command("back-translate", "again.tsv", "both.{tgt,src}"))
    assert pairs_of("again.tsv") == expected


def test_corpora_of_all_kinds_are_joined_in_the_order_in_which_they_were_named() -> None:
    first, second, third, last = (write_sides(name, 3, seed) for seed, name in enumerate(["p-2", "p-1", "x", "mono"]))
    write("x.tsv", [f"{src}\t{tgt}" for src, tgt in third])
    succeeds(*command("distill", "new.{src,tgt}", "x.tsv", "p-*.{src,tgt}", "mono.src"))
    assert [src for src, _ in pairs_of("new.{src,tgt}")] == [src for src, _ in third + second + first + last]


def test_tabs_in_text_do_not_break_a_file_of_tabs_and_stay_elsewhere() -> None:
    lines = write("mono.src", ["a b", "c\td e"])
    for output, expected in (("new.tsv", "c d e"), ("new.{src,tgt}", "c\td e")):
        succeeds(*command("distill", output, "mono.src"))
        sources = [src for src, _ in pairs_of(output)]
        assert sources == ["a b", expected]
    assert list(read_lines(Path("mono.src")))[1] == lines[1]


def test_search_options_reach_the_model() -> None:
    sources = write("old.src", [src for src, _ in reversal_pairs(100, 1, longest=14)])
    found: list[list[str]] = []
    for beam, alpha in ((1, 0.6), (3, 0.0), (3, 3.0)):
        expected = load(GOLDEN, device="cpu").translate(sources, beam=beam, alpha=alpha)
        options = ["--beam", str(beam), "--alpha", str(alpha), "--keep-all"]
        succeeds(*command("distill", f"new-{len(found)}.{{src,tgt}}", "old.src"), *options)
        found.append(list(read_lines(Path(f"new-{len(found)}.tgt"))))
        assert found[-1] == expected
    assert found[0] != found[1] != found[2] != found[0]


# --- what is dropped, what is chosen ---


def test_bad_output_is_dropped_and_counted_by_reason(capfd: Capture) -> None:
    write("mono.src", ["a b c", "", LOOPS, "e o m c m c j", "  ", "p"])
    succeeds(*command("distill", "new.tsv", "mono.src"), "--max-ratio", "1.2", "--json")
    document = json.loads(capfd.readouterr().out)
    assert [src for src, _ in pairs_of("new.tsv")] == ["a b c", "p"]
    assert (document["read"], document["kept"]) == (6, 2)
    assert {reason: drop["count"] for reason, drop in document["dropped"].items()} == {"empty": 2, "length ratio": 2}
    assert document["dropped"]["length ratio"]["first"].startswith(f"mono.src, line 3: {LOOPS!r} / ")
    succeeds(*command("distill", "again.tsv", "mono.src"))
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "6 pairs read, 3 kept (50.0%)"
    assert said[1] == "  dropped, empty: 2, first mono.src, line 2: '' / ''"
    assert said[2].startswith("  dropped, repetition: 1, first mono.src, line 3: ")
    assert said[3:] == [f"again.tsv: 3 pairs, src → tgt, tgt translated by {GOLDEN}"]


def test_a_corpus_without_a_pair_is_not_written(capfd: Capture) -> None:
    write("mono.src", [LOOPS, ""])
    message = fails(capfd, *command("distill", "new.tsv", "mono.src"))
    assert "none of 2 translations is fit to learn from (empty: 1, first mono.src, line 2: '' / ''; rep" in message
    assert "); use a model trained on such text, or see all its translations with --keep-all" in message
    assert os.listdir() == ["mono.src"]


def test_keep_all_keeps_every_line_in_its_place() -> None:
    lines = write("mono.src", ["a b c", "", LOOPS, "p"])
    succeeds(*command("distill", "new.{src,tgt}", "mono.src"), "--keep-all")
    assert pairs_of("new.{src,tgt}") == list(zip(lines, translations(lines), strict=True))


@pytest.mark.parametrize(
    ("text", "translation", "fault"),
    [
        ("a b", "b a", None),
        ("a", " ", "empty"),
        ("", "a", "empty"),
        ("a", "b " * 29, "length ratio"),
        ("a " * 29, "b", "length ratio"),
        ("a c d e", "b " * 12, "repetition"),
        ("a " * 12, "b " * 12, None),
        ("x y " * 400, "y x " * 400, None),  # however long
    ],
)
def test_the_filter_knows_what_nobody_should_learn_from(text: str, translation: str, fault: str | None) -> None:
    ids = [[ord(word) for word in side.split()] for side in (text, translation)]
    assert Filter().fault(text, translation, *ids) == fault
    assert Filter(keep_all=True).fault(text, translation, *ids) is None


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_the_translation_nearest_to_the_reference_is_chosen(metric: str) -> None:
    pairs = write_sides("old", 60)
    results = load(GOLDEN, device="cpu").nbest([src for src, _ in pairs], 3, beam=5)
    score = sentence_scorer(metric)
    best = [
        max(result.translations, key=lambda way: score(way.text, tgt)).text
        for result, (_, tgt) in zip(results, pairs, strict=True)
    ]
    assert best != [result.text for result in results]
    succeeds(*command("distill", "new.{src,tgt}", "old.{src,tgt}"), "--choose", metric, "--nbest", "3", "--beam", "5")
    assert [tgt for _, tgt in pairs_of("new.{src,tgt}")] == best


def test_of_back_translations_the_one_nearest_to_the_source_side_is_chosen() -> None:
    pairs = write_sides("old", 60)
    results = load(GOLDEN, device="cpu").nbest([src for src, _ in pairs], 4)
    score = sentence_scorer("chrf")
    best = [
        max(result.translations, key=lambda way: score(way.text, tgt)).text
        for result, (_, tgt) in zip(results, pairs, strict=True)
    ]
    succeeds(*command("back-translate", "new.{tgt,src}", "old.{tgt,src}"), "--choose", "chrf")  # of the whole beam
    assert [source for source, _ in pairs_of("new.{tgt,src}", "tgt", "src")] == best


# --- mistakes ---


def test_other_languages_than_the_models_are_refused(capfd: Capture, tmp_path: Path) -> None:
    model = str(make_bundle(tmp_path / "bundle").folder)  # en -> de
    for name in ("x.en", "x.de", "x.fr", "x.txt", "x.en-GB"):
        write(name, ["a b"])

    def said(way: str, output: str, given: str) -> str:
        return fails(capfd, *command(way, output, given, model=model))

    assert "'x.{en,fr}': a model en → de can distill only {en,de}" in said("distill", "y.{en,de}", "x.{en,fr}")
    assert "take a model de → en" in said("back-translate", "y.{de,en}", "x.{en,de}")
    assert "write {de,en}" in said("back-translate", "y.{en,de}", "x.en")
    assert "write {en,de}" in said("distill", "y.{de,en}", "x.{en,de}")
    assert "x.de: must be in en, which the model translates into de" in said("back-translate", "y.{de,en}", "x.de")
    assert "its name says fr" in said("distill", "y.{en,de}", "x.fr")
    for number, name in enumerate(("x.txt", "x.en-GB")):
        succeeds(*command("distill", f"y{number}.{{en,de}}", name, model=model), "--keep-all")
    capfd.readouterr()
    assert not list(Path().glob("y.*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-i", "old.src", "old.tgt", "-o", "new.tsv"],
            "-i takes one corpus, but got 2 names, old.src and old.tgt first",
        ),
        (["-i", "old.src", "-o", "new.src", "new.tgt"], "-o takes one corpus, but got 2 names"),
        (["-i", "old.src", "-o", "new.txt"], "must name two files as NAME.{src,tgt} or one as NAME.tsv"),
        (["-i", "old.src", "-o", "nowhere/new.tsv"], "the folder nowhere does not exist"),
        (["-i", "nothing.src", "-o", "new.tsv"], "nothing.src: there is no such file"),
        (["-i", "nothing-*.src", "-o", "new.tsv"], "must match at least one file"),
        (["-i", "empty.src", "-o", "new.tsv"], "empty.src: must hold at least one line"),
        (["-i", "tabs.txt", "-o", "new.tsv"], "tabs.txt, line 1: holds a tab; if the lines are source<TAB>target"),
        (["-i", "broken.src", "-o", "new.tsv"], "broken.src, line 3: is not valid UTF-8"),
        (["-i", "pipe.src", "-o", "new.tsv"], "pipe.src: must be a regular file"),
        (["-i", "uneven.{src,tgt}", "-o", "new.tsv"], "must have the same number of lines, but have 1 and 2"),
        (
            ["-i", "old.src", "-o", "new.tsv", "--choose", "bleu"],
            "--choose bleu needs references, but old.src is monolingual",
        ),
        (
            ["-i", "old.{src,tgt}", "-o", "new.tsv", "--nbest", "3"],
            "--nbest is the number of translations that --choose",
        ),
        (
            ["-i", "old.{src,tgt}", "-o", "new.tsv", "--choose", "chrf", "--beam", "1"],
            "at least 2 translations to choose from",
        ),
        (
            ["-i", "old.{src,tgt}", "-o", "new.tsv", "--choose", "chrf", "--beam", "2", "--nbest", "3"],
            "nbest must be between",
        ),
        (["-i", "old.{src,tgt}", "-o", "new.tsv", "--choose", "ter"], "invalid choice: 'ter'"),
        (["-i", "old.src", "-o", "new.tsv", "--beam", "0"], "beam must be at least 1"),
        (["-i", "old.src", "-o", "new.tsv", "--batch", "-1"], "--batch must be at least 1"),
        (["-i", "old.src", "-o", "new.tsv", "--max-ratio", "0.5"], "--max-ratio must be at least 1"),
        (["-i", "old.src", "-o", "new.tsv", "--max-ratio", "nan"], "--max-ratio must be at least 1"),
        (["-i", "old.src", "-o", "new.tsv", "--max-ratio", "3", "--keep-all"], "leave out --max-ratio"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing_behind(arguments: list[str], message: str, capfd: Capture) -> None:
    write_sides("old", 3)
    write("empty.src", [])
    write("tabs.txt", ["a\tb"])
    write("uneven.src", ["a"])
    write("uneven.tgt", ["a", "b"])
    Path("broken.src").write_bytes(b"a\nb\n\xff\n")
    os.mkfifo("pipe.src")
    before = sorted(os.listdir())
    assert message in fails(capfd, "augment", "--distill", "-m", GOLDEN, "--device", "cpu", *arguments)
    assert sorted(os.listdir()) == before


def test_one_of_the_ways_must_be_named(capfd: Capture) -> None:
    assert "--distill --back-translate --noise is required" in fails(capfd, "augment", "-m", "x", "-i", "x", "-o", "y")
    both = ["--distill", "--back-translate", "-m", "x", "-i", "x", "-o", "y"]
    assert "not allowed with" in fails(capfd, "augment", *both)
    assert "nowhere: there is no such model" in fails(
        capfd, "augment", "--distill", "-m", "nowhere", "-i", "x", "-o", "y"
    )
    with pytest.raises(UserError, match="way must be one of distill, back-translate, but is 'forward'"):
        augment_corpus(GOLDEN, "x", "y.tsv", way="forward")


# --- interruptions ---


def interrupt_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Ctrl-C comes when the translation of the chunk after so many has begun."""
    stream = Model.stream

    def stream_or_stop(self: Model, *arguments: Any) -> Iterator[Any]:
        nonlocal chunks
        if chunks == 0:
            raise KeyboardInterrupt
        chunks -= 1
        return stream(self, *arguments)

    monkeypatch.setattr(Model, "stream", stream_or_stop)


def test_a_models_guard_does_not_hide_what_is_dropped(capfd: Capture) -> None:
    """With the guard a line that runs away would come back as it is, and be kept as its own translation."""
    guarded = Path("guarded")
    shutil.copytree(GOLDEN, guarded)
    config = json.loads((guarded / "config.json").read_text())
    config["decode"]["guard"] = True
    (guarded / "config.json").write_text(json.dumps(config))
    manifest = json.loads((guarded / MANIFEST).read_text())
    manifest["files"]["config.json"] = sha256(guarded / "config.json")
    (guarded / MANIFEST).write_text(json.dumps(manifest))
    assert load("guarded", device="cpu").translate([LOOPS]) == [LOOPS]
    write("old.src", [LOOPS, "a b c"])
    succeeds(*command("distill", "new.{src,tgt}", "old.src", model="guarded"), "--json")
    dropped = json.loads(capfd.readouterr().out)["dropped"]
    assert dropped.keys() == {"repetition"} and dropped["repetition"]["count"] == 1


@pytest.mark.parametrize("chunks", [1, 3])
def test_an_interrupted_run_goes_on_to_the_same_files(
    chunks: int, small_chunks: int, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("mono.src", [LOOPS, *(src for src, _ in reversal_pairs(40, 4)), ""])
    succeeds(*command("distill", "whole.{src,tgt}.xz", "mono.src"), "--json")
    whole = json.loads(capfd.readouterr().out)
    arguments = command("distill", "new.{src,tgt}.xz", "mono.src")
    with monkeypatch.context() as patch:
        interrupt_after(patch, chunks)
        assert main(arguments) == 130
    said = capfd.readouterr().err
    assert said == (
        f"regard: stopped after {chunks * small_chunks} of 42 lines, which are saved; continue with the same command and --resume\n"
    )
    assert not Path("new.src.xz").exists()
    assert "new.src.xz.partial.json: is left from an interrupted run; continue with --resume" in fails(
        capfd, *arguments
    )
    for side in ("src", "tgt"):  # what a killed process had written of the chunk that it was in
        with Path(f"new.{side}.xz.partial").open("ab") as file:
            file.write(b"lines that do not count\nand half a")
    translated = []
    stream = Model.stream

    def stream_and_count(self: Model, lines: list[str], *given: Any) -> Iterator[Any]:
        translated.append(len(lines))
        return stream(self, lines, *given)

    monkeypatch.setattr(Model, "chunk", 1000)  # chunks stay what they were
    monkeypatch.setattr(Model, "stream", stream_and_count)
    succeeds(*arguments, "--resume", "--json")
    resumed = json.loads(capfd.readouterr().out)
    assert translated == [7] * (6 - chunks)
    for side in ("src", "tgt"):
        assert Path(f"new.{side}.xz").read_bytes() == Path(f"whole.{side}.xz").read_bytes()
    assert resumed["dropped"] == whole["dropped"]
    assert resumed["dropped"].keys() == {"empty", "repetition"}
    assert not list(Path().glob("*.partial*"))
    assert not list(Path().glob(".*.tmp"))


def test_an_interruption_before_the_first_chunk_leaves_nothing(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sides("old")
    interrupt_after(monkeypatch, 0)
    assert main(command("distill", "new.tsv", "old.{src,tgt}")) == 130
    assert capfd.readouterr().err == "regard: stopped before anything was written\n"
    assert sorted(os.listdir()) == ["old.src", "old.tgt"]


def test_resume_starts_afresh_where_there_is_nothing_and_ends_where_all_is_done(capfd: Capture) -> None:
    write_sides("old")
    arguments = [*command("distill", "new.{src,tgt}", "old.{src,tgt}")]
    succeeds(*arguments, "--resume")
    capfd.readouterr()
    before = Path("new.tgt").read_bytes()
    assert "new.src: is already complete" in fails(capfd, *arguments, "--resume")
    assert "new.src: already exists" in fails(capfd, *arguments)
    Path("new.src").unlink()
    assert "new.tgt: already exists" in fails(capfd, *arguments)
    assert Path("new.tgt").read_bytes() == before


def test_a_run_is_not_resumed_as_another_one(
    small_chunks: int, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sides("old")
    write_sides("other", 41)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert main(command("distill", "new.tsv", "old.{src,tgt}")) == 130
    capfd.readouterr()
    arguments = [*command("distill", "new.tsv", "old.{src,tgt}"), "--resume"]
    assert "beam is 5, but new.tsv.partial.json was started with 4" in fails(capfd, *arguments, "--beam", "5")
    assert "max_ratio is 3.0" in fails(capfd, *arguments, "--max-ratio", "3")
    assert "keep_all is True" in fails(capfd, *arguments, "--keep-all")
    assert "input is" in fails(capfd, *command("distill", "new.tsv", "other.{src,tgt}"), "--resume")
    before = Path("old.src").read_bytes()
    Path("old.src").write_bytes(before[:-2] + bytes([before[-2] ^ 1, before[-1]]))  # other text of the same length
    assert "input is" in fails(capfd, *arguments)
    Path("old.src").write_bytes(before)
    other = str(Path(GOLDEN).with_name("bundle-2"))
    assert "model is" in fails(capfd, *command("distill", "new.tsv", "old.{src,tgt}", model=other), "--resume")
    succeeds(*arguments)
    assert len(pairs_of("new.tsv")) == 40


def test_no_model_is_loaded_to_give_finished_files_their_names(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sides("old")
    arguments = command("distill", "new.{src,tgt}.xz", "old.{src,tgt}")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("regard.data.writer._compress", interrupt)
        assert main(arguments) == 130
    assert "finish the files with --resume" in capfd.readouterr().err
    assert sorted(os.listdir()) == [
        "new.src.xz.partial",
        "new.src.xz.partial.json",
        "new.tgt.xz.partial",
        "old.src",
        "old.tgt",
    ]
    monkeypatch.setattr("regard.augment.Model", None)
    succeeds(*arguments, "--resume")
    assert len(pairs_of("new.{src,tgt}.xz")) == 40


def test_input_that_changes_under_the_work_is_noticed(
    small_chunks: int, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("mono.src", ["a b"] * 20)
    monkeypatch.setattr("regard.augment.count_rows", lambda texts: 30)
    assert "had 30 lines when they were counted, but now has 20" in fails(
        capfd, *command("distill", "new.tsv", "mono.src")
    )
    assert not Path("new.tsv").exists()


# Programs that are `regard`, but wait for ever when they have come to a line: they cannot end before a test has stopped them.
HELD_TRANSLATING = """
import sys, time
from regard.api import Model
from regard.cli import main
stream, left = Model.stream, int(sys.argv.pop(1))
def wait(self, lines, *given):
    global left
    left -= len(lines)
    while left < 0:
        time.sleep(0.01)
    return stream(self, lines, *given)
Model.stream = wait
sys.exit(main(sys.argv[1:]))
"""
HELD_NOISE = """
import sys, time
import regard.augment
from regard.cli import main
noise, most = regard.augment.noise, int(sys.argv.pop(1))
def wait(pairs, number, *given):
    while number > most:
        time.sleep(0.01)
    return noise(pairs, number, *given)
regard.augment.noise, regard.augment._NOISE_CHUNK = wait, 64
sys.exit(main(sys.argv[1:]))
"""


def stop_when(process: Process, is_time: Callable[[], bool], how: signal.Signals) -> str:
    wait_until(process, is_time)
    process.send_signal(how)
    return finished(process)


@pytest.mark.slow
def test_a_run_that_is_killed_and_interrupted_ends_with_the_same_bytes() -> None:
    draw = random.Random(5)
    lines = [" ".join(draw.choices(LETTERS, k=draw.randint(1, 12))) for _ in range(6_000)]
    write("mono.src.xz", lines)
    arguments = [*command("back-translate", "whole.{tgt,src}.xz", "mono.src.xz"), "--batch", "32"]
    succeeds(*arguments)
    arguments[arguments.index("-o") + 1] = "new.{tgt,src}.xz"
    state, partial = Path("new.tgt.xz.partial.json"), Path("new.src.xz.partial")

    def saved() -> int:
        document = json.loads(state.read_text()) if state.exists() else {}
        return int((document.get("saved") or {"lines": 0})["lines"])

    def begin(most: int) -> Process:
        """Go on, but not beyond so many lines."""
        return fork(["-c", HELD_TRANSLATING, str(most - saved()), *arguments, "--resume"])

    said = stop_when(begin(2 * 1024), lambda: saved() >= 1024, signal.SIGKILL)
    assert said == ""
    first = saved()
    assert first % 1024 == 0
    assert len(partial.read_bytes().splitlines()) >= first - 10  # a few are dropped
    said = stop_when(begin(4 * 1024), lambda: saved() >= 3 * 1024, signal.SIGINT)
    assert f"regard: stopped after {saved():,} of 6,000 lines" in said
    assert "Traceback" not in said
    stop_when(begin(5 * 1024), lambda: saved() >= 4 * 1024, signal.SIGKILL)
    assert main([*arguments, "--resume"]) == 0
    for side in ("src", "tgt"):
        assert Path(f"new.{side}.xz").read_bytes() == Path(f"whole.{side}.xz").read_bytes()
    kept = list(read_lines(Path("new.src.xz")))
    assert 5_900 < len(kept) <= 6_000
    remaining = iter(lines)
    assert all(line in remaining for line in kept)  # in order, and none twice


# --- noise ---


def write_sentences(stem: str, count: int = 50, seed: int = 1) -> list[tuple[str, str]]:
    """Pairs that every kind of noise can change, and every tenth empty."""
    draw = random.Random(seed)

    def sentence(words: str) -> str:
        return " ".join(draw.choices(words.split(), k=5)).capitalize() + "."

    pairs = [(sentence("the house sees small trees"), sentence("das Haus sieht kleine Bäume")) for _ in range(count)]
    pairs[9::10] = [("", tgt) for _, tgt in pairs[9::10]]
    write(f"{stem}.en", [src for src, _ in pairs])
    write(f"{stem}.de", [tgt for _, tgt in pairs])
    write(f"{stem}.tsv", ["\t".join(pair) for pair in pairs])
    return pairs


def noise_command(output: str, *inputs: str) -> list[str]:
    return ["augment", "--noise", *(word for name in inputs for word in ("-i", name)), "-o", output]


def noised(*corpora: list[tuple[str, str]], seed: int = 1, names: tuple[str, ...] = KINDS) -> list[tuple[str, str]]:
    kinds = make_kinds(names, "en", "de")
    windows = [pairs[place : place + 4] for pairs in corpora for place in range(len(pairs))]
    made = [noise(window, number, seed, kinds) for number, window in enumerate(windows, 1)]
    return [pair for _, pair in filter(None, made)]


def test_noise_makes_one_pair_of_every_pair_and_counts_the_kinds(capfd: Capture) -> None:
    pairs = write_sentences("old")
    succeeds(*noise_command("new.{en,de}.xz", "old.{en,de}"), "--json")
    document = json.loads(capfd.readouterr().out)
    assert pairs_of("new.{en,de}.xz", "en", "de") == noised(pairs)
    assert (document["way"], document["seed"], document["source"], document["target"]) == ("noise", 1, "en", "de")
    assert "model" not in document
    assert (document["read"], document["kept"]) == (50, 45)
    assert document["skipped"] == {"count": 5, "first": f"old.{{en,de}}, line 10: '' / {pairs[9][1]!r}"}
    assert list(document["kinds"]) == list(KINDS)
    assert sum(document["kinds"].values()) == 45
    assert min(document["kinds"].values()) > 0
    succeeds(*noise_command("again.tsv", "old.tsv"), "--source", "en", "--target", "de")
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "50 pairs read, 45 noised (90.0%)"
    assert said[1] == "  " + ", ".join(f"{kind}: {count}" for kind, count in document["kinds"].items())
    assert said[2].startswith("  skipped, empty, too long or nothing to change: 5, first old.tsv, line 10: ")
    assert said[3:] == ["again.tsv: 45 pairs, en → de, noise, seed 1"]
    assert pairs_of("again.tsv") == noised(pairs)


def test_a_third_column_of_the_input_is_said(capfd: Capture) -> None:
    Path("wide.tsv").write_text("a b c\tx y z\tCC BY\n" * 20 + "d e\tu v\n")
    succeeds("augment", "--noise", "-i", "wide.tsv", "-o", "noisy.tsv", "--source", "en", "--target", "de")
    assert "wide.tsv: only the first two columns are used" in capfd.readouterr().err


def test_noise_loads_neither_a_model_nor_torch() -> None:
    write_sentences("old")
    code = "import sys; from regard.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    arguments = [sys.executable, "-c", code, *noise_command("new.{en,de}", "old.{en,de}")]
    done = subprocess.run(
        arguments, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    )
    assert done.stdout.splitlines()[-1:] == ["0 False"], done.stderr


def test_noise_depends_on_seed_and_kinds_and_on_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, others = write_sentences("old"), write_sentences("other", 13, 2)
    made = []
    for number, (chunk, given) in enumerate(
        [
            (16_384, []),
            (1, []),
            (7, []),
            (7, ["--seed", "2"]),
            (7, ["--kinds", "join, lower"]),
            (3, ["--kinds", "lower,join"]),
        ]
    ):
        monkeypatch.setattr("regard.augment._NOISE_CHUNK", chunk)
        succeeds(*noise_command(f"new-{number}.{{en,de}}", "old.{en,de}", "other.tsv"), *given)
        made.append(pairs_of(f"new-{number}.{{en,de}}", "en", "de"))
    assert made[0] == made[1] == made[2] == noised(pairs, others)  # no line is joined with one of another corpus
    assert made[3] == noised(pairs, others, seed=2) != made[0]
    assert made[4] == made[5] == noised(pairs, others, names=("lower", "join"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "old.tsv", "-o", "new.tsv"], "'old.tsv': its name does not give the languages; add --source and"),
        (["-i", "old.tsv", "-o", "new.tsv", "--source", "en"], "must be two languages, but are en and None"),
        (["-i", "old.tsv", "-o", "new.tsv", "--source", "en", "--target", "en"], "must be two languages"),
        (
            ["-i", "old.{en,de}", "-o", "new.{de,en}"],
            "'new.{de,en}': must be in the languages of 'old.{en,de}', {en,de}, source side first, but is in {de,en}",
        ),
        (
            ["-i", "old.{en,de}", "-o", "new.tsv", "--source", "en", "--target", "fr"],
            "'old.{en,de}': must be in the languages of --source and --target, {en,fr}",
        ),
        (["-i", "old.en", "-o", "new.{en,de}"], "old.en: noise needs both sides; name two files as NAME.{en,de}"),
        (["-i", "old.{en,de}", "-o", "new.txt"], "must name two files as NAME.{en,de} or one as NAME.tsv"),
        (["-i", "none.{en,de}", "-o", "new.tsv"], "none.en: there is no such file"),
        (["-i", "bad.{en,de}", "-o", "new.tsv"], "must have the same number of lines, but have 3 and 2"),
        (["-i", "old.{en,de}", "-o", "old.{en,de}"], "old.en: already exists"),
        (["-i", "old.{en,de}", "-o", "new.tsv", "--kinds", "lower,caps"], "join, copy, spacing, but one is 'caps'"),
        (["-i", "old.{en,de}", "-o", "new.tsv", "--kinds", ""], "but one is ''"),
        (["-i", "old.{en,de}", "-o", "new.tsv", "--seed", "x"], "invalid int value: 'x'"),
        (["-i", "old.{en,de}", "-o", "new.tsv", "-m", "x"], "--noise needs no model; leave out -m"),
        (["-i", "old.{en,de}", "-o", "new.tsv", "--max-ratio", "3"], "--noise needs no model; leave out --max-ratio"),
        (["-i", "old.{en,de}", "-o", "new.tsv", "--keep-all"], "--noise needs no model; leave out --keep-all"),
        (
            ["-i", "low.{en,de}", "-o", "new.tsv", "--kinds", "lower"],
            "none of 2 pairs is changed by lower (first low.{en,de}, line 1: 'a b' / 'A'); use other --kinds",
        ),
    ],
)
def test_a_mistake_with_noise_gets_one_line_and_leaves_nothing(
    arguments: list[str], message: str, capfd: Capture
) -> None:
    write_sentences("old")
    write("bad.en", ["a", "b", "c"])
    write("bad.de", ["a", "b"])
    write("low.en", ["a b", "c"])
    write("low.de", ["A", "B"])
    before = sorted(os.listdir())
    assert message in fails(capfd, "augment", "--noise", *arguments)
    assert sorted(os.listdir()) == before


def test_noise_options_are_refused_where_a_model_works(capfd: Capture) -> None:
    for option in (["--kinds", "lower"], ["--seed", "0"], ["--source", "en"], ["--target", "de"]):
        said = fails(capfd, *command("distill", "new.tsv", "old.{src,tgt}"), *option)
        assert f"--distill adds no noise; leave out {option[0]}" in said
    with pytest.raises(UserError, match="but is 'noise'; noise is made by noise_corpus"):
        augment_corpus(GOLDEN, "x", "y.tsv", way="noise")
    with pytest.raises(UserError, match="--kinds must name at least one of lower, "):
        noise_corpus("x.{en,de}", "y.tsv", kinds=[])


def test_noise_that_was_interrupted_is_not_resumed_as_another(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = write_sentences("old")
    write_sentences("other", 51)
    monkeypatch.setattr("regard.augment._NOISE_CHUNK", 7)
    calls = 0

    def stop(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return noise(*given)

    with monkeypatch.context() as patch:
        patch.setattr("regard.augment.noise", stop)
        assert main(noise_command("new.tsv", "old.{en,de}")) == 130
    assert "stopped after 14 of 50 lines, which are saved" in capfd.readouterr().err
    arguments = [*noise_command("new.tsv", "old.{en,de}"), "--resume"]
    assert "seed is 2, but new.tsv.partial.json was started with 1" in fails(capfd, *arguments, "--seed", "2")
    assert "kinds is ['lower'], but" in fails(capfd, *arguments, "--kinds", "lower")
    assert "input is" in fails(capfd, *noise_command("new.tsv", "other.{en,de}"), "--resume")
    write_sides("sides")
    said = fails(capfd, *command("distill", "new.tsv", "sides.{src,tgt}"), "--resume")
    assert "--resume: way is 'distill', but new.tsv.partial.json was started with 'noise'" in said
    monkeypatch.setattr("regard.augment._NOISE_CHUNK", 1000)
    succeeds(*arguments)
    assert pairs_of("new.tsv") == noised(pairs)


@pytest.mark.slow
def test_noise_that_is_killed_ends_with_the_same_bytes(capfd: Capture) -> None:
    write_sentences("old", 5_000)
    succeeds(*noise_command("whole.{en,de}.xz", "old.{en,de}"), "--json")
    whole = json.loads(capfd.readouterr().out)
    arguments = [*noise_command("new.{en,de}.xz", "old.{en,de}"), "--resume", "--json"]
    state = Path("new.en.xz.partial.json")

    def saved() -> int:
        document = json.loads(state.read_text()) if state.exists() else {}
        return int((document.get("saved") or {"lines": 0})["lines"])

    stop_when(fork(["-c", HELD_NOISE, "1500", *arguments]), lambda: saved() >= 1_000, signal.SIGKILL)
    assert 1_000 <= saved() < 3_000
    stop_when(fork(["-c", HELD_NOISE, "4000", *arguments]), lambda: saved() >= 3_000, signal.SIGKILL)
    assert 3_000 <= saved() < 5_000
    succeeds(*arguments)
    resumed = json.loads(capfd.readouterr().out)
    assert {**resumed, "output": "", "files": []} == {**whole, "output": "", "files": []}
    for side in ("en", "de"):
        assert Path(f"new.{side}.xz").read_bytes() == Path(f"whole.{side}.xz").read_bytes()
    assert not list(Path().glob("*.partial*"))


# --- from Python ---


def test_a_corpus_is_made_from_python() -> None:
    from regard import augment_corpus

    pairs = write_sides("old")
    made = augment_corpus(GOLDEN, "old.{src,tgt}", "new.{src,tgt}.gz", way="distill", device="cpu")
    assert (made.source, made.target, made.account.kept) == ("src", "tgt", 40)
    assert made.files == [Path("new.src.gz"), Path("new.tgt.gz")]
    assert [src for src, _ in pairs_of("new.{src,tgt}.gz")] == [src for src, _ in pairs]


def test_a_chunk_is_many_batches_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    write("mono.src", ["a"] * 5_000)
    sizes = []

    def stream(self: Model, lines: list[str], *_: Any) -> Iterator[Any]:
        sizes.append(len(lines))
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "stream", stream)
    for batch in (1, 100):
        with pytest.raises(Interrupted):
            regard.augment.augment_corpus(
                GOLDEN, "mono.src", "new.tsv", way="distill", device="cpu", engine="torch", batch=batch
            )
    assert sizes == [1024, 3200]


def test_noise_is_made_from_python() -> None:
    from regard import noise_corpus

    pairs = write_sentences("old")
    made = noise_corpus("old.tsv", "new.tsv.gz", kinds=["typos"], seed=3, source="en", target="de")
    assert (made.way, made.seed, made.model, made.account.kept) == ("noise", 3, None, 45)
    assert pairs_of("new.tsv.gz") == noised(pairs, seed=3, names=("typos",))


# --- several processes ---


@pytest.mark.slow
def test_two_processes_make_the_corpus_of_one() -> None:
    write_sides("old", 2301)  # more than a chunk
    more = ("--engine", "torch", "--beam", "1")
    succeeds(*command("distill", "one.{src,tgt}", "old.{src,tgt}"), *more)
    codes, said = together(2, *command("distill", "two.{src,tgt}", "old.{src,tgt}"), *more)
    assert codes == [0, 0], said
    assert "two.{src,tgt}: " in said[0] and said[1] == ""
    for side in ("src", "tgt"):
        assert Path(f"two.{side}").read_bytes() == Path(f"one.{side}").read_bytes()


@pytest.mark.slow
def test_of_two_processes_one_says_what_is_wrong() -> None:
    codes, said = together(2, *command("distill", "two.{src,tgt}", "missing.{src,tgt}"))
    assert codes[0] == 2 and codes[1] != 0
    assert "missing.src" in said[0] and said[1] == ""
