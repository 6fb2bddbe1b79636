"""Attributes of HTML that are texts, and the language of a page."""

from __future__ import annotations

import pytest

from regard.translation.documents.readers import open_document
from tests.translation.documents.test_documents import MOST, shouted


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<img src="a.png" alt="a cat">', '<img src="a.png" alt="A CAT">'),
        ("<p>x <a href=a title='it''s'>y</a> z</p>", "<p>X <a href=a title='IT''s'>Y</a> Z</p>"),
        ("<a title=tom>b</a>", '<a title="TOM">B</a>'),
        (
            '<input type="text" placeholder="your name" value="x">',
            '<input type="text" placeholder="YOUR NAME" value="x">',
        ),
        ('<input type=submit value="send">', '<input type=submit value="SEND">'),
        ('<textarea placeholder="say">x</textarea>', '<textarea placeholder="SAY">x</textarea>'),
        ('<meta name="description" content="a page">', '<meta name="description" content="A PAGE">'),
        ('<meta name="viewport" content="width=1">', '<meta name="viewport" content="width=1">'),
        ('<b title="a &amp; &quot;b&quot; &lt;">c</b>', '<b title="A &amp; &quot;B&quot; &lt;">C</b>'),
        ('<b data-title="a" title="">c</b>', '<b data-title="a" title="">C</b>'),
        ('<div translate="no"><img alt="a"></div><p class=notranslate title="b">', None),
        ('<script>x = "<img alt=a>"</script><!-- <img alt="b"> --><code><img alt="c"></code>', None),
        ('<img alt="\x01a">', None),
    ],
)
def test_attributes_that_are_texts_are_translated(before: str, after: str | None) -> None:
    assert shouted(before.encode(), "html").decode() == (before if after is None else after)


def test_the_language_of_a_page_is_set() -> None:
    document = open_document(b"<!DOCTYPE html>\n<HTML class=x LANG='en-US'><p lang=fr>oui", "html", MOST, None, "de")
    assert document.save(document.texts) == b'<!DOCTYPE html>\n<HTML class=x LANG="de"><p lang=fr>oui'
    document = open_document(b"<html><p>a", "html", MOST, None, "de")
    assert document.save(document.texts) == b'<html lang="de"><p>a'
