"""Trees as text: the counts of evalb itself, and lines that no model should write."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trees import linearise, read_trees, restore, score, words_of

# A gold tree from GUM (Zeldes, 2017; CC BY and CC BY-SA texts), another tree over its words, and what evalb (Sekine and Collins;
# with COLLINS.prm) says of the pair: brackets that match, in the gold tree, in the other.
LINES = (Path(__file__).parent / "golden" / "evalb.tsv").read_text(encoding="utf-8").splitlines()
EVALB = [
    (gold, predicted, tuple(map(int, counts))) for gold, predicted, *counts in (line.split("\t") for line in LINES)
]


@pytest.mark.parametrize(("gold", "predicted", "counts"), EVALB)
def test_brackets_count_as_in_evalb(gold: str, predicted: str, counts: tuple[int, int, int]) -> None:
    found = score(read_trees(gold), read_trees(predicted))
    assert (found.matched, found.gold, found.predicted) == counts
    assert found.exact == (counts[0] == counts[1] == counts[2])


@pytest.mark.parametrize("gold", [gold for gold, _, _ in EVALB])
def test_a_linearised_tree_comes_back(gold: str) -> None:
    (tree,) = read_trees(gold)
    assert str(restore(linearise(tree), tree.leaves())) == gold
    assert str(restore(linearise(tree, with_words=True), tree.leaves())) == gold


@pytest.mark.parametrize(
    ("line", "tree"),
    [
        ("", "(ROOT (DT the) (NN cat))"),
        ("(NP XX", "(ROOT (NP (DT the)) (NN cat))"),
        ("(NP XX XX XX XX )NP", "(ROOT (NP (DT the) (NN cat)))"),
        (")S (NP XX )VP XX )NP )NP", "(ROOT (NP (DT the) (NN cat)))"),
        ("(S (NP XX (VP XX )S", "(ROOT (S (NP (DT the) (VP (NN cat)))))"),
        ("(NP )NP (S ) ( (VP XX XX )VP )S", "(ROOT (S (VP (DT the) (NN cat))))"),
        ("(NP the cat )NP", "(ROOT (NP (DT the) (NN cat)))"),
        ("(NP the dog )NP", "(ROOT (NP (DT the) (NN cat)))"),
        ("(NP the old the )NP (VP cat )VP", "(ROOT (NP (DT the)) (VP (NN cat)))"),
        ("(NP cat )NP", "(ROOT (NP (DT the) (NN cat)))"),
        ("(NP the )NP", "(ROOT (NP (DT the)) (NN cat))"),
    ],
)
def test_a_line_that_is_no_tree_is_repaired(line: str, tree: str) -> None:
    (gold,) = read_trees("(ROOT (NP (DT the) (NN cat)))")
    assert str(restore(line, gold.leaves())) == tree


def test_words_are_written_as_in_the_text() -> None:
    (tree,) = read_trees("(ROOT (NP (-LRB- -LRB-) (NN cat) (-RRB- -RRB-)))")
    assert words_of(tree) == "( cat )"


def test_trees_over_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="tree 1 must have the words of its gold tree"):
        score(read_trees("(ROOT (NN cat))"), read_trees("(ROOT (NN dog))"))
    with pytest.raises(ValueError, match="balanced"):
        read_trees("(ROOT (NP (NN cat))")
