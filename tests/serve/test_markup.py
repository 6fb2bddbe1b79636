"""HTML in and out: the tags stay, whatever the sentences become."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serve.markup import Page

WORDS = {"the": "die", "cat": "Katze", "sat": "saß", "on": "auf", "mat": "Matte", "black": "schwarze", "hello": "hallo"}


def by_word(sentence: str) -> str:
    """A model that translates word by word."""
    return re.sub(r"\w+", lambda m: WORDS.get(m[0].lower(), m[0]), sentence)


def backwards(sentence: str) -> str:
    """A model that turns the order of words round."""
    return " ".join(reversed(sentence.split()))


def translate(text: str, model: Callable[[str], str] = by_word) -> str:
    page = Page(text, "en")
    return page.join([model(sentence) for sentence in page.sentences])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "One. Two!  Three?",
        "<p>Hello <b>you</b>.</p>\n<p>And &amp; &lt;you&gt;.</p>",
        "<!DOCTYPE html><html><!-- hello --><body class='x'>a<br>b<br/>c</body></html>",
        "<a href='?a=1&amp;b=2' title=\"x > y\">link</a>",
        "<ul><li>One<li>Two</ul>",
        "<b>One. Two</b> three.",
        "<b>open <p>inner</p> text</b>",
        "</b> stray <i>open",
        "<span><i>deep</i></span> and <u></u> empty",
        "<P>CASE <B>kept</B ></P >",
        "<em>whole sentence.</em> <em>Another one.</em>",
        "a &nbsp; b",
    ],
)
def test_unchanged_sentences_give_the_same_page(text: str) -> None:
    assert translate(text, lambda sentence: sentence) == text


def test_tags_follow_the_words_that_they_enclose() -> None:
    text = '<p>The <b>black</b> cat sat on the <a href="/mat">mat</a>.</p>'
    assert translate(text) == '<p>die <b>schwarze</b> Katze saß auf die <a href="/mat">Matte</a>.</p>'
    assert translate("<p>cat <i>black</i> the</p>", backwards) == "<p>the <i>black</i> cat</p>"
    assert translate("<b>the</b> <i>cat</i> sat", backwards) == "sat <i>cat</i> <b>the</b>"


def test_nested_tags_stay_nested() -> None:
    assert translate("hello <b>the <i>black</i> cat</b> sat") == "hallo <b>die <i>schwarze</i> Katze</b> saß"


def test_words_that_are_not_found_again_get_their_tags_by_position() -> None:
    answers = {"the cat sat": "alpha beta gamma", "cat": "never found"}
    assert translate("the <b>cat</b> sat", lambda s: answers[s]) == "alpha <b>beta</b> gamma"


@pytest.mark.parametrize(
    "kept",
    [
        "<script>if (the < cat) { sat(); }</script>",
        "<style>the { cat: sat }</style>",
        "<code>the <b>cat</b></code>",
        '<p translate="no">the cat <i>sat</i> on</p>',
        '<span class="x notranslate">the cat</span>',
        "<!-- the cat -->",
        "<pre>the   cat</pre>",
    ],
)
def test_what_is_not_to_be_translated_is_untouched(kept: str) -> None:
    assert translate(f"hello {kept} the cat") == f"hallo {kept} die Katze"


def test_a_translation_cannot_bring_in_markup() -> None:
    answer = "<script>alert(1)</script> & so on"
    assert translate("<p>hello</p>", lambda s: answer) == "<p>&lt;script&gt;alert(1)&lt;/script&gt; &amp; so on</p>"


def tags(text: str) -> list[str]:
    return sorted(re.findall(r"<[^>]*>", text))


FRAGMENTS = st.sampled_from(
    "the|cat.| |hello|<b>|</b>|<i>|</i>|<p>|</p>|<br>|<a href=x>|</a>|!|<u></u>|Sat on|?\n".split("|")
)


@given(st.lists(FRAGMENTS, max_size=14), st.sampled_from([by_word, backwards, lambda s: s[:3], lambda s: s]))
def test_no_tag_is_lost_or_doubled_and_elements_stay_balanced(parts: list[str], model: Callable[[str], str]) -> None:
    text = "".join(parts)
    result = translate(text, model)
    assert tags(result) == tags(text)
    assert translate(text, lambda s: s) == text
    if is_balanced(text):
        assert is_balanced(result)


def is_balanced(text: str) -> bool:
    stack: list[str] = []
    for closing, name in re.findall(r"<(/?)(\w+)[^>]*>", text):
        if name == "br":
            continue
        if not closing:
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
    return not stack
