"""Markdown documents: which lines are text, what stays, and that links and escapes come out as they went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.translation.documents.document import Document
from regard.translation.documents.readers import open_document
from regard.translation.markup.marked_text import MarkedText


def opened(text: str) -> Document:
    return open_document(text.encode(), "md", 10_000_000)


def translated(text: str, words: dict[str, str] | None = None) -> str:
    """The document with its sentences in upper case, or with these translations."""
    document = opened(text)
    pages = [MarkedText(one, "en", parse_markup=document.parse_markup) for one in document.texts]
    said = [[words[sentence] if words else sentence.upper() for sentence in page.sentences] for page in pages]
    return document.save([page.join(some) for page, some in zip(pages, said, strict=True)]).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Settings before the text.
        ("---\ntitle: a\n---\nb\n", "---\ntitle: a\n---\nB\n"),
        ("---\r\ntitle: a\r\n---\r\nb\r\n", "---\r\ntitle: a\r\n---\r\nB\r\n"),
        ("+++\r\ntitle = 'a'\r\n+++\r\nb\r\n", "+++\r\ntitle = 'a'\r\n+++\r\nB\r\n"),
        ("+++\na\n---\nb\n+++\nc", "+++\na\n---\nb\n+++\nC"),
        ("---\n\na\n", "---\n\nA\n"),
        # Lists: items in items, and paragraphs in items.
        ("- a\n    - b\n        - c\n", "- A\n    - B\n        - C\n"),
        ("- a\n\t- b\n\t\t- c\n", "- A\n\t- B\n\t\t- C\n"),
        ("- a\n\n    b\n\n\tc\n", "- A\n\n    B\n\n\tC\n"),
        ("1. a\n\n    - b\n\n        c\n", "1. A\n\n    - B\n\n        C\n"),
        ("10. a\n11. b\n\n    c\n", "10. A\n11. B\n\n    C\n"),
        ("-\ta\n\n\tb\n", "-\tA\n\n\tB\n"),
        ("> - a\n>\n>     b\n", "> - A\n>\n>     B\n"),
        ("- a\nb\n\n    c\n", "- A\nB\n\n    C\n"),
        ("- a\r\n\r\n    b\r\n", "- A\r\n\r\n    B\r\n"),
        # Code that is indented.
        ("a\n\n    b\n\n    c\n\nd\n", "A\n\n    b\n\n    c\n\nD\n"),
        ("    a\n\tb\nc\n", "    a\n\tb\nC\n"),
        ("a\n    b\n", "A\n    B\n"),
        ("# a\n    b\n", "# A\n    b\n"),
        ("- a\n\n      b\n", "- A\n\n      b\n"),
        ("- a\n\n\t\tb\n", "- A\n\n\t\tb\n"),
        ("- a\n\nb\n\n    c\n", "- A\n\nB\n\n    c\n"),
        ("> a\n>\n>     b\n", "> A\n>\n>     b\n"),
        ("* * *\n\n    a\n", "* * *\n\n    a\n"),
        ("a\n1986. b\n\n    c\n", "A\n1986. B\n\n    c\n"),
        # Fences.
        ("> ```\n> a\n> ```\n> b\n", "> ```\n> a\n> ```\n> B\n"),
        (">```\n>a\n>```\n>b\n", ">```\n>a\n>```\n>B\n"),
        ("> ```\n> a\n\nb\n", "> ```\n> a\n\nB\n"),
        ("> > ~~~\n> > a\n> b\n", "> > ~~~\n> > a\n> B\n"),
        ("- ```\n  a\n  ```\n  b\n", "- ```\n  a\n  ```\n  B\n"),
        ("1. a\n\n    ```sh\n    b\n    ```\n\n    c\n", "1. A\n\n    ```sh\n    b\n    ```\n\n    C\n"),
        ("1. a\n   ```\nb\n   ```\nc\n", "1. A\n   ```\nb\n   ```\nC\n"),
        ("> - ```\n>   a\n>   ```\n> - b\n", "> - ```\n>   a\n>   ```\n> - B\n"),
        ("```\na\n```python\nb\n```\nc\n", "```\na\n```python\nb\n```\nC\n"),
        ("````\n```\na\n```\n````\nb\n", "````\n```\na\n```\n````\nB\n"),
        ("```\na\n`````\nb\n", "```\na\n`````\nB\n"),
        ("~~~\na\n```\nb\n~~~\nc\n", "~~~\na\n```\nb\n~~~\nC\n"),
        ("```\na\n    ```\nb\n```\nc\n", "```\na\n    ```\nb\n```\nC\n"),
        ("```a``` b\nc\n", "```a``` B\nC\n"),
        ("```\r\na\r\n``` \r\nb\r\n", "```\r\na\r\n``` \r\nB\r\n"),
    ],
)
def test_text_is_translated_and_code_is_not(before: str, after: str) -> None:
    assert translated(before) == after


DEFINITIONS = "\n\n[user guide]: http://x.y 'It'\n> [Getting  started]: <b>\n[it]: c\n\n```\n[code]: d\n```\n\n[Anna]: not a link\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("see [user guide].", "SEE [USER GUIDE][user guide]."),
        ("see [User guide][].", "SEE [USER GUIDE][User guide]."),
        ("see [getting started][], [user guide]", "SEE [GETTING STARTED][getting started], [USER GUIDE][user guide]"),
        ("see [*user* guide][it] and [a](b) and [it].", "SEE [*USER* GUIDE][it] AND [A](b) AND [IT][it]."),
        ("see ![it], ![it][], ![a][it] and [![it]](a)", "SEE ![IT][it], ![IT][it], ![A][it] AND [![IT][it]](a)"),
        ("see `[it]`, \\[it\\], [code] and [Anna]", "SEE `[it]`, \\[IT\\], [CODE] AND [ANNA]"),
        ("- [x] [IT] 1\n- [IT][] 2\n- [IT][IT] 3", "- [x] [IT] 1\n- [IT][] 2\n- [IT][IT] 3"),
    ],
)
def test_links_that_are_found_by_their_words_are_still_found(before: str, after: str) -> None:
    assert translated(before + DEFINITIONS) == after + DEFINITIONS
    document = opened(before + DEFINITIONS)
    assert document.save(document.texts).decode() == before + DEFINITIONS


def test_the_words_of_such_a_link_are_translated_in_their_sentence() -> None:
    words = {"Read the user guide first.": "Lies zuerst die Anleitung.", "user guide": "Anleitung"}
    text = "Read the [user guide] first.\n\n[user guide]: http://x.y\n"
    assert translated(text, words) == "Lies zuerst die [Anleitung][user guide].\n\n[user guide]: http://x.y\n"


@given(
    st.lists(
        st.sampled_from(
            [
                *"ab",
                "    ",
                "\t",
                " ",
                "- ",
                "1. ",
                "> ",
                "```",
                "~~~",
                "\n",
                "\r\n",
                "---",
                "# ",
                "+++",
                "[a]",
                "[]",
                ": b",
                "!",
                "\\",
                "`",
            ]
        )
    )
)
def test_what_is_not_translated_comes_out_as_it_was(parts: list[str]) -> None:
    text = "".join(parts)
    document = opened(text)
    assert document.save(document.texts).decode() == text
    if "[" not in text:
        assert translated(text).lower() == text


@pytest.mark.parametrize(
    "mark",
    ["[a] ", "[", "![a][]", "`[a", "[a]: b\n", "[a]: b 'c ", "> ", ">", "- ", "1. ", "-\n", "\t", "- a\n\n ", "> - "],
)
def test_deep_markdown_does_not_take_for_ever(mark: str) -> None:
    text = mark * 50_000 + "a" + "\n" * 50_000 + "[b]: c"
    assert translated(text).lower() == text


def test_a_line_of_links_does_not_take_for_ever() -> None:
    assert translated("[a] " * 20_000 + "\n\n[a]: b") == "[A][a] " * 20_000 + "\n\n[a]: b"
    assert translated("![a] b " * 20_000 + "\n\n[a]: b") == "![A][a] B " * 20_000 + "\n\n[a]: b"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("birds[^1] sing\n\n[^1]: a *note* here\n", "BIRDS[^1] SING\n\n[^1]: A *NOTE* HERE\n"),
        ('![a cat](x.png "Tom") and [b](y \'c d\')', '![A CAT](x.png "TOM") AND [B](y \'C D\')'),
        ("![a cat][x]\n\n[x]: y\n", "![A CAT][x]\n\n[x]: y\n"),
        ("`![a](b)` \\![a](b \"c\")", "`![a](b)` \\![A](b \"C\")"),
        ("![](x.png) ![1](y)", None),
        ("a [^x\n", "A [^X\n"),
    ],
)  # fmt: skip
def test_footnotes_alternative_texts_and_titles_are_translated(before: str, after: str | None) -> None:
    document = opened(before)
    pages = [plan.join([one.upper() for one in plan.sentences]) for plan in document.plans("en")]
    assert document.save(pages).decode() == (before if after is None else after)


def test_a_translated_title_cannot_end_its_link() -> None:
    document = opened('[a](b "c d")')
    assert document.save([document.texts[0], 'it\'s "x"] \\']).decode() == '[a](b "it’s x ")'
