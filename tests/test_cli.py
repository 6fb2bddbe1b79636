"""The command line: what people type, and what they get for a mistake."""

from __future__ import annotations

import io
import json
import lzma
import os
import pty
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from regard.cli import main, make_parser
from regard.translation.lines import LineFile
from tests.commands import PATIENCE, fails
from tests.tiny import make_bundle, reversal_pairs, write_pairs, write_recipe


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_bundle(tmp_path_factory.mktemp("cli") / "bundle").folder)


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, Path]:
    source, target = write_pairs(tmp_path / "text", "corpus", reversal_pairs(60, 1))
    return source.rename(source.with_suffix(".en")), target.rename(target.with_suffix(".de"))


def translate(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["translate", "--device", "cpu", *arguments]) == 0
    return capfd.readouterr().out.splitlines()


def test_line_n_of_the_output_translates_line_n_of_the_input(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ["a b c", "", "d", "   ", "a b c d e f g h", "d"]
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    together = translate(capfd, "-m", bundle, "-i", str(file))
    assert [bool(line) for line in together] == [bool(line.strip()) for line in lines]
    for line, translation in zip(lines, together, strict=True):
        assert translate(capfd, "-m", bundle, line) == [translation]


def test_text_files_of_all_kinds_and_standard_input_give_the_same(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, packed, out = tmp_path / "in.txt", tmp_path / "in.txt.xz", tmp_path / "out.txt"
    plain.write_bytes(b"a b\nc d e\n")
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    expected = translate(capfd, "-m", bundle, "a b", "c d e")
    assert translate(capfd, "-m", bundle, "-i", str(plain)) == expected
    assert translate(capfd, "-m", bundle, "-i", str(packed), "-o", str(out)) == []
    assert out.read_text(encoding="utf-8").splitlines() == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(plain.read_bytes())))
    assert translate(capfd, "-m", bundle) == expected


def test_an_interrupted_file_is_finished_with_resume(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, partial = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "out.txt.partial"
    source.write_text("a b\nc d\ne f\n")
    terms = tmp_path / "terms.tsv"
    terms.write_text("a\tb\n")
    expected = translate(capfd, "-m", bundle, "--glossary", str(terms), "a b", "c d", "e f")
    command = ["translate", "--device", "cpu", "-i", str(source), "-o", str(out), "--glossary", str(terms)]
    written: list[str] = []
    write = LineFile.write

    def stop() -> None:
        raise KeyboardInterrupt

    def stop_after_two(file: LineFile, text: str) -> None:
        if len(written) == 2:
            stop()
        written.append(text)
        write(file, text)

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "write", lambda file, text: stop())
        assert main([*command, "-m", bundle]) == 130
    assert capfd.readouterr().err.endswith("regard: stopped before anything was written\n")
    assert not partial.exists()
    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "write", stop_after_two)
        assert main([*command, "-m", bundle]) == 130
    told = "regard: stopped after 2 lines, which are saved; continue with the same command and --resume\n"
    assert capfd.readouterr().err.endswith(told)
    assert partial.read_text(encoding="utf-8").splitlines() == expected[:2]
    partial.write_text("done before\nhal", encoding="utf-8")

    resumed = [*command, "--resume", "-m"]
    told = fails(capfd, *resumed, bundle, "--beam", "3")
    assert "--resume: beam is 3, but" in told and " was started without it;" in told
    assert "--resume: keep is ['a'], but" in fails(capfd, *resumed, bundle, "--keep", "a")
    other = make_bundle(tmp_path / "other", decoder_layers=2)
    assert "--resume: model is" in fails(capfd, *resumed, str(other.folder))
    terms.write_text("a\tc\n")
    assert "--resume: glossary is" in fails(capfd, *resumed, bundle)
    terms.write_text("a\tb\n")
    for other_text in ("a b\nc d\ne f g\n", "a b\nc d\ne g\n"):  # the second of the same length
        source.write_text(other_text)
        assert "--resume: input is" in fails(capfd, *resumed, bundle)
    source.write_text("a b\nc d\ne f\n")
    assert main([*resumed, bundle]) == 0
    assert out.read_text(encoding="utf-8").splitlines() == ["done before", *expected[1:]]
    assert not partial.exists() and not (tmp_path / "out.txt.partial.json").exists()


def test_a_file_is_not_translated_into_itself(bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, link = tmp_path / "in.txt", tmp_path / "link.txt"
    source.write_text("a b\n")
    link.symlink_to(source)
    for out in (source, link):
        said = fails(capfd, "translate", "-m", bundle, "-i", str(source), "-o", str(out))
        assert f"-o {out}: must not be the input file; name another" in said
    assert source.read_text() == "a b\n"


def test_the_name_of_a_file_is_not_translated_as_text(
    bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a b"):
        Path(name).write_text("c\n")
    said = fails(capfd, "translate", "-m", bundle, "c", "a", "-o", "out.txt")
    assert "a: is a file; translate it with -i a" in said
    assert not Path("out.txt").exists()
    assert (
        len(translate(capfd, "-m", bundle, "a b", "", "c" * 300)) == 3
    )  # a sentence, nothing, and longer than a name can be


def test_nbest_gives_line_number_score_and_text(bundle: str, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in translate(capfd, "-m", bundle, "--nbest", "3", "a b", "c")]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    scores = [float(row[1]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    assert rows[0][2] == translate(capfd, "-m", bundle, "a b")[0]


def test_json_is_one_document_and_nothing_else(bundle: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "-m", bundle, "--device", "cpu", "--json", "a b", ""]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [entry["source"] for entry in document] == ["a b", ""]
    assert document[1]["translations"][0]["text"] == ""
    assert main(["info", bundle, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["source"] == "en"


def test_info_takes_a_model_as_the_other_verbs_do(bundle: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", bundle]) == 0
    card = capfd.readouterr().out
    assert main(["info", "-m", bundle]) == 0
    assert capfd.readouterr().out == card
    assert "leave out MODEL or -m" in fails(capfd, "info", bundle, "-m", bundle)


def test_a_built_in_model_is_named_and_not_its_folder(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = fails(capfd, "translate", "-m", "en-de", "-m", "de-en", "x")
    assert told.startswith("regard: de-en: the models of an ensemble must share a tokenizer") and "/en-de" not in told


def test_average_says_that_there_are_fewer_checkpoints(
    bundle: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.bundle import load_bundle

    made = (load_bundle(Path(bundle)), ["step-000010", "step-000020"])
    monkeypatch.setattr("regard.training.finish.average", lambda *_: made)
    assert main(["average", "run", "--last", "50", "-o", "out"]) == 0
    assert "note: the run has only 2 of the 50 checkpoints that --last asks for" in capfd.readouterr().err
    assert main(["average", "run", "--last", "2", "-o", "out"]) == 0
    assert capfd.readouterr().err == ""


def test_a_bundle_need_not_be_imported(bundle: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = fails(capfd, "import", "--from", "transformers", bundle, "-o", str(tmp_path / "x"))
    assert f"{bundle}: is a bundle of Regard already; use it as it is: -m {bundle}" in told


def test_explain_says_what_it_wrote(bundle: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "a b", "-m", bundle, "-o", str(page)]) == 0
    assert f"{page}: written\n" in capfd.readouterr().err


def test_a_person_at_a_terminal_is_told_to_type(bundle: str) -> None:
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "regard", "translate", "-m", bundle, "--device", "cpu"],
            stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        os.write(leader, b"a b\n\x04")
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        os.close(leader)
        os.close(follower)
    assert err.startswith("type a line and press Enter to translate it; Ctrl-D ends\n")
    assert out.strip()


def test_info_shows_the_card(bundle: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", bundle]) == 0
    out = capfd.readouterr().out
    assert "en → de" in out and f"\nUse: `regard translate -m {bundle} TEXT`\n" in out
    assert main(["info"]) == 0
    assert "\nUse: `regard translate -m en-de TEXT`\n" in capfd.readouterr().out


def test_score_gives_a_log_probability_for_each_pair(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from regard.api import load

    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("a b\nc\n")
    target.write_text("b a\nd e f\n")
    assert main(["score", "-m", bundle, "--device", "cpu", "--source", str(source), "--target", str(target)]) == 0
    printed = [float(line) for line in capfd.readouterr().out.splitlines()]
    assert printed == pytest.approx(load(bundle, device="cpu").score(["a b", "c"], ["b a", "d e f"]), abs=1e-5)
    assert all(value < 0 for value in printed)


def test_evaluate_scores_a_model_and_a_file_alike(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, reference, output = tmp_path / "s", tmp_path / "r", tmp_path / "o"
    source.write_text("a b\nc d\n")
    reference.write_text("b a\nd c\n")
    command = ["evaluate", "--json", "--bootstrap", "20", "--reference", str(reference)]
    assert main([*command, "-m", bundle, "--device", "cpu", "--source", str(source), "-o", str(output)]) == 0
    by_model = json.loads(capfd.readouterr().out)
    again = [*command, "-m", bundle, "--device", "cpu", "--source", str(source), "-o", str(output)]
    assert f"-o {output}: already exists; choose another name, or add --force" in fails(capfd, *again)
    assert main([*again, "--force"]) == 0
    assert json.loads(capfd.readouterr().out) == by_model
    assert main([*command, "--hypothesis", str(output)]) == 0
    assert json.loads(capfd.readouterr().out) == by_model
    assert "version:" in by_model["metrics"]["bleu"]["signature"]
    assert main([*command[:1], *command[2:], "--hypothesis", str(output), "--against", str(reference)]) == 0
    assert str(reference) in capfd.readouterr().out


# What each way of evaluating reads; whatever else is given would change nothing.
_EVALUATED: dict[str, tuple[list[str], set[str]]] = {
    "TABLE is for a model with labels": (["table.tsv"], {"-m", "--device", "--text", "--label"}),
    "--pairs and --choices are for a language model": (
        ["--pairs", "pairs.jsonl"],
        {"-m", "--adapter", "--engine", "--device", "--batch", "--pairs", "--choices", "--stride"},
    ),
    "--hypothesis is scored as it is": (
        ["--hypothesis", "x.de", "--reference", "y.de"],
        {"--hypothesis", "--reference", "--against", "--target-language", "--bootstrap"},
    ),
}
# Without TABLE, or without --pairs and --choices, these have remedies of their own.
_OWN_REMEDIES = {"--pairs", "--choices", "--stride", "--text", "--label"}


@pytest.mark.parametrize("said", _EVALUATED)
def test_evaluate_refuses_every_option_that_would_do_nothing(said: str, capfd: pytest.CaptureFixture[str]) -> None:
    command, fitting = _EVALUATED[said]
    left_out = fitting | (set() if command[0] == "table.tsv" else _OWN_REMEDIES) | {"-h", "--json"}
    options = {one.option_strings[0]: one for one in make_parser().verbs["evaluate"]._actions if one.option_strings}
    assert fitting <= set(options)
    for name, option in options.items():
        if name not in left_out:
            given = [] if option.nargs == 0 else [str(list(option.choices)[-1]) if option.choices else "7"]
            assert f"{said}; leave out {name}" in fails(capfd, "evaluate", *command, name, *given)
    several = ["--top-k", "3", "--alpha", "1"]
    assert f"{said}; leave out --alpha and --top-k" in fails(capfd, "evaluate", *command, *several)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nothing.toml"], "nothing.toml: there is no such recipe file"),
        (["train", "corpus.en"], "corpus.en: there is no such file or folder"),
        (["train", "a", "b", "c"], "a: there is no such file or folder"),
        (["translate", "-m", "nothing", "hello"], "nothing: there is no such model"),
        (["translate", "--resume", "-m", "x", "hello"], "--resume needs -i FILE and -o FILE"),
        (["translate", "-m", "x", "-o", "y.de.gz", "hello"], "-o y.de.gz: translate writes plain text; leave out .gz"),
        (["translate", "--beam", "many", "x"], "invalid int value"),
        (["evaluate", "--reference", "nothing.de", "--hypothesis", "x"], "nothing.de"),
        (["average", "nothing", "-o", "x"], "nothing: must be a run folder, but has no recipe.toml"),
        (["translate", "--engine", "fast", "x"], "argument --engine: invalid choice: 'fast'"),
        (["export", "-m", "x", "-o", "y"], "the following arguments are required: --to"),
        (["export", "--to", "onnx", "-m", "x"], "the following arguments are required: -o"),
        (["export", "--to", "onnx", "-m", "nothing", "-o", "y"], "nothing: there is no such model"),
        (
            ["import", "--from", "transformers", "nothing", "-o", "y"],
            "nothing: must be a folder with a model of transformers",
        ),
        (["import", "--from", "fairseq", "x", "-o", "y"], "argument --from: invalid choice: 'fairseq'"),
        (["import", "x", "-o", "y"], "the following arguments are required: --from"),
        (["trian"], "there is no verb 'trian'; did you mean train? (see regard --help)"),
        (["Good morning!"], "there is no verb 'Good morning!'; to translate: regard translate \"Good morning!\""),
        (["mine.toml"], "to train from a recipe: regard train mine.toml"),
        (["xyz"], "there is no verb 'xyz'; the verbs are train, translate,"),
        (["--beam", "4", "translate", "x"], "--beam must come after a verb: regard VERB --beam"),
        (
            ["translate", "--beem", "4", "x"],
            "translate has no option --beem; did you mean --beam? (see regard translate",
        ),
        (
            ["evaluate", "--referense=x"],
            "evaluate has no option --referense; did you mean --reference? (see regard evaluate",
        ),
        (["info", "--glossary", "x"], "info has no option --glossary (an option of translate, evaluate, compare)"),
        (["info", "a", "b"], "unrecognized arguments: b (see regard info --help)"),
        (["info", "-q"], "unrecognized arguments: -q (see regard info --help)"),
        (["train", "--minutes", "5", "--steps", "9", "a.toml"], "only one of --minutes and --steps"),
        (["train", "--minutes", "0", "a.toml"], "--minutes must be more than 0, but is 0"),
        (
            ["train", "photos/cat.jpg"],
            "photos/cat.jpg is a picture; `regard train SRC TGT` takes parallel text",
        ),
        (
            ["train", "train.xlsx", "test.csv"],
            "train.xlsx is a table; save it as .csv; `regard train SRC TGT` takes parallel text",
        ),
        (["train", "pairs.tsv.gz"], "pairs.tsv.gz: there is no such file or folder"),
        (["train", "deploy"], "deploy: must have text files ("),
        (
            ["train", "recipes/tatoeba.toml", "--task", "generate"],
            "--task is for plain files; a recipe says its task itself",
        ),
        (["train", "a.toml", "b"], "a.toml is a recipe, which is trained alone"),
        ([], "a verb is required"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert message in fails(capfd, *arguments)


def test_options_of_train_replace_fields_of_the_recipe(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, steps=7)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = ["train", str(recipe), "--dump-recipe"]

    def dumped(*options: str) -> dict[str, Any]:
        assert main([*command, *options]) == 0
        return tomllib.loads(capfd.readouterr().out)

    changed = dumped("--minutes", "20", "--lr", "0.001", "--valid", "dev.{a,b}", "--test", "9", "--source", "en")
    assert {name: changed["train"].get(name) or 0 for name in ("steps", "epochs", "minutes", "lr")} == {
        "steps": 0, "epochs": 0, "minutes": 20.0, "lr": 0.001,
    }  # fmt: skip
    assert changed["data"]["valid"] == str(tmp_path / "here" / "dev.{a,b}")  # of the folder where the command is typed
    assert changed["data"]["test"] == 9 and changed["data"]["source"] == "en"
    assert dumped("--epochs", "3")["train"]["epochs"] == 3
    assert dumped("--seed", "3", "--set", "train.seed=4")["train"]["seed"] == 4
    assert "set exactly one of" in fails(capfd, *command, "--minutes", "5", "--set", "train.epochs=2")


def test_help_is_that_of_the_verb(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "score"], ["score", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        assert capfd.readouterr().out.startswith("usage: regard score")
    with pytest.raises(SystemExit):
        main(["help"])
    assert capfd.readouterr().out.startswith("usage: regard [-h]")


def completions(line: str, folder: Path) -> list[str]:
    """What the shell is offered for a line, by argcomplete's protocol: the words go to file descriptor 8."""
    program = "import os, sys; os.dup2(1, 8); os.dup2(2, 9); from regard.cli import main; main()"
    environment = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    environment |= {"_ARGCOMPLETE_IFS": "\n", "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    return [word.strip() for word in found.stdout.splitlines()]


def test_the_shell_completes_verbs_options_models_and_fields(bundle: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(bundle)
    assert completions("regard comp", tmp_path) == ["compare", "completion"]
    assert "--minutes" in completions("regard train --mi", tmp_path)
    assert completions("regard translate -m en", tmp_path) == ["en-de"]
    assert completions("regard translate -m runs/", tmp_path) == ["runs/mine"]
    assert completions("regard train x.toml --set train.minu", tmp_path) == ["train.minutes="]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_of_completion_names_the_command(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert {"bash": "complete -o", "zsh": "compdef", "fish": "complete --command regard"}[
        shell
    ] in capfd.readouterr().out


def test_bash_completes_a_command(tmp_path: Path) -> None:
    script = (
        f'eval "$({sys.executable} -m regard completion bash)"\n'
        f'regard() {{ {sys.executable} -m regard "$@"; }}\n'
        "COMP_WORDS=(regard trans) COMP_CWORD=1 COMP_LINE='regard trans' COMP_POINT=12 COMP_TYPE=9\n"
        '_python_argcomplete regard\necho "${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert run.stdout.split() == ["translate"], run.stderr


def test_bad_search_options_are_refused(bundle: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--beam must be at least 1" in fails(capfd, "translate", "-m", bundle, "--beam", "0", "x")
    told = fails(capfd, "translate", "-m", bundle, "--top-k", "3", "x")
    assert "--temperature, --top-k, --top-p and --seed are for sampling; add --sample, or leave" in told
    assert "use a wider beam" in fails(capfd, "translate", "-m", bundle, "--beam", "2", "--mbr", "bleu", "x")
    assert "--nbest must be between 1 and the beam (2)" in fails(
        capfd, "translate", "-m", bundle, "--beam", "2", "--nbest", "3", "x"
    )
    assert "device must be" in fails(capfd, "translate", "-m", bundle, "--device", "toaster", "x")


def test_engines_give_the_same_translations_and_scores(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    golden = str(Path(__file__).parent / "golden" / "bundle-1")
    engines = ("auto", "torch", "ctranslate2")
    answers = [translate(capfd, "-m", golden, "--engine", engine, "a b c", "", "p o n") for engine in engines]
    assert answers[0] == answers[1] == answers[2] == ["c b a", "", "n o p"]
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("a b\nc\n")
    target.write_text("b a\nd e f\n")
    scores = []
    for engine in ("torch", "ctranslate2"):
        arguments = ["--engine", engine, "--source", str(source), "--target", str(target)]
        assert main(["score", "-m", bundle, "--device", "cpu", *arguments]) == 0
        scores.append([float(line) for line in capfd.readouterr().out.splitlines()])
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_what_an_engine_cannot_do_is_refused_in_one_line(
    bundle: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = fails(capfd, "translate", "-m", bundle, "--engine", "ctranslate2", "--device", "cuda", "x")
    assert "device must be auto or cpu with engine ctranslate2, but is 'cuda'; use --engine torch" in message
    expected = translate(capfd, "-m", bundle, "--engine", "torch", "a b")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    message = fails(capfd, "translate", "-m", bundle, "--engine", "ctranslate2", "x")
    assert "pip install 'regard[export]'" in message
    assert translate(capfd, "-m", bundle, "a b") == expected


def test_export_says_where_and_how_near(bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--to", "ctranslate2", "-m", bundle]
    assert main([*command, "-o", str(tmp_path / "a")]) == 0
    said = capfd.readouterr().out
    assert said.startswith(f"{tmp_path / 'a'}: written for ctranslate2, weights in fp32; ")
    assert (tmp_path / "a" / "model.bin").is_file()
    assert main([*command, "--weights", "int8", "-o", str(tmp_path / "b"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document.keys() == {"folder", "to", "weights", "difference", "mean_difference", "tolerance", "notes"}
    assert document["folder"] == str(tmp_path / "b")
    assert document["weights"] == "int8"
    assert 1e-5 < document["mean_difference"] < document["difference"] < document["tolerance"]
    assert "already exists" in fails(capfd, *command, "-o", str(tmp_path / "a"))
    assert "--weights must be one of fp32, fp16, int8" in fails(
        capfd, *command, "--weights", "x", "-o", str(tmp_path / "c")
    )
    assert "--to must be one of" in fails(capfd, "export", "--to", "paper", "-m", bundle, "-o", str(tmp_path / "c"))


def test_import_passes_on_what_it_is_told(
    bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.bundle import load_bundle
    from regard.importing import transformers as importer

    calls = []

    def import_model(folder: Path, out: Path, **options: object) -> object:
        calls.append((folder, out, options))
        return importer.Imported(load_bundle(Path(bundle)), "Marian", "MarianMTModel")

    monkeypatch.setattr(importer, "import_model", import_model)
    command = ["import", "--from", "transformers", str(tmp_path), "-o", "out"]
    assert main(command) == 0
    assert capfd.readouterr().out == f"{bundle}: en → de\n"
    assert main([*command, "--allow-pickle", "--no-compare", "--source", "fr", "--target", "it", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document == {
        "folder": bundle,
        "source": "en",
        "target": "de",
        "task": "translate",
        "family": "Marian",
        "architecture": "MarianMTModel",
        "difference": None,
        "difference_in_float64": None,
        "notes": [],
    }
    assert calls == [
        (tmp_path, Path("out"), {"source": None, "target": None, "allow_pickle": False, "compare": True}),
        (tmp_path, Path("out"), {"source": "fr", "target": "it", "allow_pickle": True, "compare": False}),
    ]


def test_files_of_unequal_length_are_refused_with_both_counts(
    corpus: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = corpus
    target.write_text(target.read_text() + "one more\n")
    message = fails(capfd, "train", str(source), str(target), "--dry-run")
    assert "corpus.en" in message
    assert "corpus.de" in message
    assert "60" in message
    assert "61" in message


def test_invalid_utf8_is_refused_with_file_and_line(
    corpus: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = corpus
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join([*lines[:6], b"caf\xe9\n", *lines[7:]]))
    assert "corpus.de, line 7" in fails(capfd, "train", str(source), str(target), "--dry-run")


def test_an_empty_and_a_missing_file_are_refused_by_name(
    corpus: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = corpus
    assert "nothing.de" in fails(capfd, "train", str(source), "nothing.de", "--dry-run")
    target.write_bytes(b"")
    assert "corpus.de" in fails(capfd, "train", str(source), str(target), "--dry-run")


def test_a_dumped_recipe_trains_the_same_run(
    corpus: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sets = [
        "--set",
        "train.steps=3",
        "--set",
        "model.d_model=16",
        "--set",
        "model.d_ff=16",
        "--set",
        "train.device=cpu",
    ]
    assert main(["train", *map(str, corpus), *sets, "--dump-recipe"]) == 0
    recipe = tmp_path / "dumped.toml"
    recipe.write_text(capfd.readouterr().out, encoding="utf-8")
    assert main(["train", *map(str, corpus), *sets, "--out", str(tmp_path / "one")]) == 0
    assert main(["train", str(recipe), "--out", str(tmp_path / "two")]) == 0
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]


def test_a_dry_run_says_what_it_chose_and_trains_nothing(
    corpus: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *map(str, corpus), "--dry-run"]) == 0
    said = capfd.readouterr().err
    for word in ("en → de", "60 pairs", "held out", "vocabulary", "model", "time"):
        assert word in said
    assert not (tmp_path / "runs").exists()
    recipe = write_recipe(tmp_path / "recipe")
    assert main(["train", str(recipe), "--dry-run"]) == 0
    assert "time" in capfd.readouterr().err


def test_ctrl_c_ends_a_command_that_waits_for_lines(bundle: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "translate", "-m", bundle, "--device", "cpu"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write("a b c\n")
    process.stdin.flush()
    assert process.stdout.readline().endswith("\n")  # now it waits for the next one
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 130
    assert process.stderr.read() == "regard: interrupted\n"
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_a_reader_that_leaves_is_no_error_with_a_traceback(bundle: str) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "regard",
            "translate",
            "-m",
            bundle,
            "--device",
            "cpu",
            "--nbest",
            "4",
            *["a b c"] * 400,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    process.wait(timeout=PATIENCE)
    assert "Traceback" not in said


def test_a_dry_run_refuses_what_the_run_would(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "recipe")
    valid = "data.valid=nothing.{src,tgt}"
    assert "nothing.src: there is no such file" in fails(capfd, "train", str(recipe), "--dry-run", "--set", valid)
    files = [str(tmp_path / "recipe" / f"train.{side}") for side in ("src", "tgt")]
    for change, message in (
        ("model.preset=tiny", "model.d_model must be 320, as in the model in train.init, but is 192"),
        (
            "tokenizer.protect=false",
            "the model in train.init was trained with protected spans; remove tokenizer.protect",
        ),
    ):
        said = fails(
            capfd, "train", *files, "--dry-run", "--set", "train.init=en-de", "--set", change,
            "--set", "data.source=en", "--set", "data.target=de",
        )  # fmt: skip
        assert message in said


def test_a_place_that_no_file_can_take_is_refused_before_any_work(
    bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a b\n")
    Path("b.txt").write_text("c d\n")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("link.html").symlink_to("gone/x.html")
    evaluate = ["evaluate", "-m", bundle, "--source", "a.txt", "--reference", "b.txt", "--bootstrap", "0", "-o"]
    translating = ["translate", "-m", bundle, "-i", "a.txt", "-o"]
    for command in (evaluate, translating, ["explain", "-m", bundle, "a b", "-o"]):
        for place in ("", ".", "folder", "pipe"):
            said = fails(capfd, *command, place)
            assert "must be" in said or "must end in" in said
        assert "gone does not exist" in fails(capfd, *command, "link.html")
    for name in ("a.txt", "b.txt"):
        assert f"-o {name}: must not be one of the input files; name another" in fails(capfd, *evaluate, name)
    assert "is the current folder" in refused_in_an_empty_folder(capfd, bundle)
    assert Path("a.txt").read_text() == "a b\n" and Path("b.txt").read_text() == "c d\n"
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "folder", "link.html", "pipe"]


def refused_in_an_empty_folder(capfd: pytest.CaptureFixture[str], bundle: str) -> str:
    os.chdir("folder")
    try:
        return fails(capfd, "export", "--to", "bundle", "-m", bundle, "-o", ".")
    finally:
        os.chdir("..")


def test_what_a_link_leads_to_is_written(bundle: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big")
    assert main(["export", "--to", "bundle", "-m", bundle, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").is_symlink() and (tmp_path / "big" / "manifest.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "out"]
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    assert main(["translate", "-m", bundle, "a b", "-o", str(tmp_path / "link.txt")]) == 0
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text()
