"""benchmarks/claims.py at a tiny size, on a CPU, and the models that it compares."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.claims import main, parse
from benchmarks.paper_claims import layers, recall
from benchmarks.paper_claims.convolutional import ConvolutionalReader, ConvolutionalTranslator
from benchmarks.paper_claims.greedy import greedy
from benchmarks.paper_claims.grid import fit_width, num_parameters
from benchmarks.paper_claims.recall import Recall
from benchmarks.paper_claims.recurrent import RecurrentReader, RecurrentTranslator
from regard.layout import SequenceLayout

RIVALS = (RecurrentTranslator, ConvolutionalTranslator)


@pytest.mark.slow
def test_all_sections_run_and_make_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "claims.json", tmp_path / "claims.md"
    main(["--smoke", "--device", "cpu", "--out", str(out)])
    results = json.loads(out.read_text())
    assert list(results) == ["translation", "layers", "scores", "recall"]
    chosen = [row["contender"] for row in results["translation"]["rows"] if row.get("chosen")]
    assert chosen == ["Transformer", "LSTM", "convolution"]
    sizes = [row["parameters"] for row in results["translation"]["rows"]]
    assert max(sizes) < 1.1 * min(sizes)  # closer at real widths, where a step of the width adds less
    assert "where recurrence wins" in capsys.readouterr().out
    # A contender that was not translated with is trained again, the others are not.
    results["translation"]["rows"] = [
        row for row in results["translation"]["rows"] if not row.get("chosen") or row["contender"] != "LSTM"
    ]
    results["translation"]["complete"] = False
    out.write_text(json.dumps(results))
    capsys.readouterr()
    main(["--smoke", "--device", "cpu", "--out", str(out), "--only", "translation"])
    printed = capsys.readouterr().out
    assert "Transformer: measured before" in printed and "convolution: measured before" in printed
    again = [row["contender"] for row in json.loads(out.read_text())["translation"]["rows"] if row.get("chosen")]
    assert again == chosen and "LSTM, rate" in printed
    main(["--page", str(page), "--out", str(out)])
    text = page.read_text()
    for name in results:
        assert f"](claims-{name}.svg)" in text
        assert (tmp_path / f"claims-{name}.svg").read_text().startswith("<?xml")


def test_a_start_that_was_cut_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page, calls = tmp_path / "claims.json", tmp_path / "claims.md", []
    command = ["--smoke", "--device", "cpu", "--only", "recall", "--recall-seconds", "0.01", "--out", str(out)]
    train = recall.timed_training

    def counted(*arguments: Any, cut: int) -> Any:
        calls.append(1)
        if len(calls) == cut:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(recall, "timed_training", partial(counted, cut=4))
    with pytest.raises(KeyboardInterrupt):
        main(command)
    before = json.loads(out.read_text())["recall"]
    assert len(before["rows"]) == 3 and not before["complete"]
    main(["--page", str(page), "--out", str(out)])
    assert "Not all of this section has been measured." in page.read_text()
    monkeypatch.setattr(recall, "timed_training", partial(counted, cut=-1))
    main(command)
    after = json.loads(out.read_text())["recall"]
    assert len(after["rows"]) == 8 and len(calls) == 4 + 5 and after["complete"]
    for old, new in zip(before["rows"], after["rows"], strict=False):
        assert {**old, "chosen": None} == {**new, "chosen": None}
    assert sum(row.get("chosen", False) for row in after["rows"]) == 4
    assert after["facts"]["section, s"] > before["facts"]["section, s"]
    main(command)
    assert "recall: measured before" in capsys.readouterr().out and len(calls) == 9
    with pytest.raises(SystemExit, match=r"section recall was measured with other settings \(seed\); use --again"):
        main([*command, "--seed", "2"])
    main([*command, "--seed", "2", "--again"])
    assert len(calls) == 9 + 8


@pytest.mark.parametrize("kind", RIVALS)
def test_padding_and_later_words_change_nothing(
    kind: type[RecurrentTranslator] | type[ConvolutionalTranslator],
) -> None:
    """A pair gives the same states alone and beside a longer one, and a target word does not see those after it."""
    torch.manual_seed(0)
    model = kind(20, 8, 2, 0.1).eval()
    src, tgt = torch.randint(20, (11,)), torch.randint(20, (9,))
    both = model.hidden(src, SequenceLayout.from_lengths([4, 7]), tgt, SequenceLayout.from_lengths([3, 6]))
    alone = model.hidden(src[:4], SequenceLayout.from_lengths([4]), tgt[:3], SequenceLayout.from_lengths([3]))
    torch.testing.assert_close(both[:3], alone)
    changed = tgt.clone()
    changed[2] = (changed[2] + 1) % 20
    other = model.hidden(src[:4], SequenceLayout.from_lengths([4]), changed[:3], SequenceLayout.from_lengths([3]))
    torch.testing.assert_close(other[:2], alone[:2])
    assert not torch.allclose(other[2], alone[2])


@pytest.mark.parametrize("kind", RIVALS)
def test_greedy_search_follows_the_likeliest_tokens(
    kind: type[RecurrentTranslator] | type[ConvolutionalTranslator],
) -> None:
    torch.manual_seed(0)
    model = kind(20, 8, 2, 0.0).eval()
    sources = [[5, 6, 7], [9, 8, 7, 6, 5, 4], [3]]
    found = greedy(model, sources, 1, 2, [0, 1], torch.device("cpu"), 4)
    for source, ids in zip(sources, found, strict=True):
        assert len(ids) <= len(source) + 4 and not {0, 1, 2} & set(ids)
        src, tgt = torch.tensor([*source, 2]), torch.tensor([1, *ids])
        layouts = [SequenceLayout.from_lengths([len(each)]) for each in (src, tgt)]
        logits = model.hidden(src, layouts[0], tgt, layouts[1]) @ model.output_weight.t()
        logits[:, :2] = -torch.inf
        likeliest = logits.argmax(-1).tolist()
        assert likeliest[: len(ids)] == ids
        assert len(ids) == len(source) + 4 or likeliest[-1] == 2


def test_readers_see_what_they_say() -> None:
    """A token further back than a convolution reaches changes nothing, one within reach does; an LSTM sees all."""
    torch.manual_seed(0)
    for reader, reach in (
        (ConvolutionalReader(10, 8, 3, dilated=False), 7),
        (ConvolutionalReader(10, 8, 3, dilated=True), 15),
        (RecurrentReader(10, 8, 2), 20),
    ):
        assert getattr(reader, "reach", 20) == reach
        ids = torch.randint(9, (1, 20))
        last = reader(ids)[0, -1]
        for back in range(1, 21):
            changed = ids.clone()
            changed[0, -back] = 9
            assert torch.equal(reader(changed)[0, -1], last) == (back > reach), back


def test_recall_asks_for_what_was_told() -> None:
    task = Recall(keys=3, values=5, noise=4, tokens=100)
    ids, answers = task.draw(6, 10, torch.Generator().manual_seed(1))
    assert ids.shape == (6, 16) and answers.shape == (6, 3) and int(ids.max()) < task.vocab_size
    for text, expected in zip(ids.tolist(), answers.tolist(), strict=True):
        told = {fact // 5: fact % 5 for fact in text[:3]}
        assert [told[question - 19] for question in text[-3:]] == expected
        assert all(15 <= token < 19 for token in text[3:-3])


def test_widths_make_models_equally_large() -> None:
    width = fit_width(lambda width: RecurrentTranslator(8000, width, 3, 0.1), 7_500_000)
    assert abs(num_parameters(RecurrentTranslator(8000, width, 3, 0.1)) / 7_500_000 - 1) < 0.02


def test_recurrence_must_stay_ahead_to_win() -> None:
    rows = [
        {"kind": "layer", "layer": name, "d": 8, "n": n, "texts": 4, "ms": ms}
        for name, times in (
            (layers.FORMULA, (1.0, 9.0, 5.0, None)),
            (layers.FUSED, (1.0, 9.0, 3.0, 3.0)),
            (layers.LSTM, (2.0, 2.0, 4.0, 8.0)),
        )
        for n, ms in zip((1, 2, 4, 8), times, strict=True)
    ]
    won = {
        (row["attention"], row["texts"]): row["recurrence is faster from n"]
        for row in layers.crossovers(rows)
        if row["texts"] == "many" and row["what"] == "layer"
    }
    assert won == {(layers.FORMULA, "many"): 2, (layers.FUSED, "many"): None}


def test_unknown_sections_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in ((["--only", "speed"], "--only"), (["--page", "--out", "missing.json"], "missing.json")):
        with pytest.raises(SystemExit):
            parse(arguments)
        assert word in capsys.readouterr().err
