"""Translates texts with a teacher, one after another in one process; scripts/builtin.py starts several and tells them what to do.

    python -m scripts.builtin_distill TEACHER

Each line of standard input names a text in the source language, the corpus to make of it and, unless empty, the corpus with noise
to make of that one; tabs between. The labels of the corpora say the direction. Answers each with a line. What is there already is
not made again.
"""

from __future__ import annotations

import sys

from regard.augment import Augmented, augment_corpus, noise_corpus


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    [teacher] = sys.argv[1:]
    for line in sys.stdin:
        text, made, noised = line.rstrip("\n").split("\t")
        print(_kept(augment_corpus(teacher, text, made, way="distill", resume=True)), end=" ")
        if noised:
            print(_kept(noise_corpus(made, noised, resume=True)), end=" ")
        print(flush=True)


def _kept(made: Augmented) -> str:
    return f"{made.way}: {made.account.kept:,} of {made.account.read:,} lines"


if __name__ == "__main__":
    main()
