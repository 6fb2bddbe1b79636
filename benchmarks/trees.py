"""Constituency trees as text (section 6.3 of the paper): bracketed trees in and out, trees as lines of tokens that a model can
write, and the labelled bracketing F1 of evalb.

A tree is linearised as Vinyals et al. (2015) do: words become XX, brackets carry their label on both sides, and the order is the
tree's, depth first. With little text to learn from, words that stand as they are keep a model from miscounting them.

>>> tree = read_trees("(ROOT (S (NP-SBJ (PRP She)) (VP (VBD slept)) (. .)))")[0]
>>> linearise(tree)
'(S (NP XX )NP (VP XX )VP XX )S'
>>> str(restore(linearise(tree), tree.leaves()))
'(ROOT (S (NP (PRP She)) (VP (VBD slept)) (. .)))'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

WORD = "XX"
_DELETED = frozenset(
    {"", "ROOT", "TOP", "S1", "-NONE-", ",", ":", "``", "''", "."}
)  # evalb's COLLINS.prm, with our roots
_SAME = {"PRT": "ADVP"}  # likewise


@dataclass
class Tree:
    """A bracket with its label: a preterminal has a word, any other bracket children."""

    label: str
    children: list[Tree] = field(default_factory=list)
    word: str | None = None

    def leaves(self) -> list[Tree]:
        """The preterminals, from left to right."""
        return [self] if self.word is not None else [leaf for child in self.children for leaf in child.leaves()]

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"


def read_trees(text: str) -> list[Tree]:
    """The trees of a file in the Penn Treebank's brackets; function tags and indices of labels are cut off (NP-SBJ-1 -> NP)."""
    stack = [Tree("")]
    for opening, closing, word in re.findall(r"\(\s*([^\s()]*)|(\))|([^\s()]+)", text):
        if closing:
            stack.pop()
        elif word:
            stack[-1].word = word
        else:
            tree = Tree(_plain(opening))
            stack[-1].children.append(tree)
            stack.append(tree)
    if len(stack) != 1:
        raise ValueError("brackets must be balanced, but are not")
    return stack[0].children


def _plain(label: str) -> str:
    return label if label.startswith("-") else re.split(r"[-=|]", label)[0]


def words_of(tree: Tree) -> str:
    """The sentence, its words parted by spaces."""
    brackets = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
    return " ".join(brackets.get(leaf.word or "", leaf.word or "") for leaf in tree.leaves())


def linearise(tree: Tree, with_words: bool = False) -> str:
    """The tree as tokens, without its root; `with_words`: words stand as they are instead of as XX."""
    return " ".join(token for child in tree.children for token in _tokens(child, with_words))


def _tokens(tree: Tree, with_words: bool) -> Iterator[str]:
    if tree.word is not None:
        yield tree.word if with_words else WORD
        return
    yield f"({tree.label}"
    for child in tree.children:
        yield from _tokens(child, with_words)
    yield f"){tree.label}"


def restore(line: str, leaves: Sequence[Tree]) -> Tree:
    """The tree that a line of tokens describes, with these leaves. Mistakes of a model are repaired: surplus words are dropped,
    missing ones go where the next word stands or to the end, a bracket that opens or closes nothing is dropped, and one that is
    never closed closes at the end."""
    tokens = line.split()
    taken = iter(_aligned([token for token in tokens if token[0] not in "()"], leaves))
    root = Tree("ROOT")
    stack = [root]
    placed = 0
    for token in tokens:
        if token.startswith("("):
            if token != "(":
                tree = Tree(token[1:])
                stack[-1].children.append(tree)
                stack.append(tree)
        elif token.startswith(")"):
            if token[1:] in [tree.label for tree in stack[1:]]:
                while stack.pop().label != token[1:]:
                    pass
        elif (number := next(taken)) is not None:
            stack[-1].children += [Tree(leaf.label, word=leaf.word) for leaf in leaves[placed : number + 1]]
            placed = number + 1
    root.children += [Tree(leaf.label, word=leaf.word) for leaf in leaves[placed:]]
    _drop_empty(root)
    return root


def _aligned(words: Sequence[str], leaves: Sequence[Tree]) -> list[int | None]:
    """The leaf that each word of a line stands for, in order; None for a surplus word. XX stands for the next leaf."""
    if set(words) <= {WORD}:
        return [number if number < len(leaves) else None for number in range(len(words))]
    found: list[int | None] = [None] * len(words)
    matcher = SequenceMatcher(None, words, [leaf.word or "" for leaf in leaves], autojunk=False)
    for kind, begin, end, first, last in matcher.get_opcodes():
        if kind in ("equal", "replace"):  # a word that was miswritten stands for the one in its place
            found[begin:end] = [first + n if first + n < last else None for n in range(end - begin)]
    return found


def _drop_empty(tree: Tree) -> None:
    for child in tree.children:
        _drop_empty(child)
    tree.children = [child for child in tree.children if child.word is not None or child.children]


def brackets_of(tree: Tree) -> Counter[tuple[str, int, int]]:
    """The labelled brackets that evalb counts, each with the range of its words, (begin, end); punctuation does not count."""
    found: Counter[tuple[str, int, int]] = Counter()

    def walk(node: Tree, begin: int) -> int:
        if node.word is not None:
            return begin + (node.label not in _DELETED)
        end = begin
        for child in node.children:
            end = walk(child, end)
        if end > begin and node.label not in _DELETED:
            found[_SAME.get(node.label, node.label), begin, end] += 1
        return end

    walk(tree, 0)
    return found


@dataclass(frozen=True)
class Brackets:
    """Counts over a test set."""

    matched: int
    gold: int
    predicted: int
    exact: int
    sentences: int

    @property
    def recall(self) -> float:
        return 100 * self.matched / self.gold

    @property
    def precision(self) -> float:
        return 100 * self.matched / max(1, self.predicted)

    @property
    def f1(self) -> float:
        return 200 * self.matched / (self.gold + self.predicted)


def score(gold: Iterable[Tree], predicted: Iterable[Tree]) -> Brackets:
    """Labelled bracketing over pairs of trees; each pair must have the same words."""
    matched = in_gold = in_predicted = exact = sentences = 0
    for one, other in zip(gold, predicted, strict=True):
        if [leaf.word for leaf in one.leaves()] != [leaf.word for leaf in other.leaves()]:
            raise ValueError(f"tree {sentences + 1} must have the words of its gold tree, but has others")
        left, right = brackets_of(one), brackets_of(other)
        matched += (left & right).total()
        in_gold += left.total()
        in_predicted += right.total()
        exact += left == right
        sentences += 1
    return Brackets(matched, in_gold, in_predicted, exact, sentences)
