"""HTML in and out: the tags stay, whatever the sentences become."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from regard.errors import InputError
from regard.translation.alignment import TextAlignment
from regard.translation.links import belonging
from regard.translation.markup.inline_markdown import parse_inline_markdown
from regard.translation.markup.marked_text import MarkedText, parse_plain
from regard.translation.markup.tags import Xml

WORDS = {"the": "die", "cat": "Katze", "sat": "saß", "on": "auf", "mat": "Matte", "black": "schwarze", "hello": "hallo"}


def by_word(sentence: str) -> str:
    """A model that translates word by word."""
    return re.sub(r"\w+", lambda m: WORDS.get(m[0].lower(), m[0]), sentence)


def backwards(sentence: str) -> str:
    """A model that turns the order of words round."""
    return " ".join(reversed(sentence.split()))


def translate(text: str, model: Callable[[str], str] = by_word, xml: Xml | None = None) -> str:
    page = MarkedText(text, "en", xml=xml)
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
        '<p>Really?<b><a id="n1"></a>Yes, really.</b></p>',
        "<p>Hello!<b><i></i>World.</b></p>",
        "<p>Hello!<b><i><u></u></i></b><i>World.<b></b></i>Two.</p>",
        f"<p>Hello.</p><img alt='x' src=\"data:image/png;base64,{'iVBORw0K' * 20_000}\"><p style='{'a' * 50_000}'>World</p>",
    ],
    ids=lambda text: text[:40],
)
def test_unchanged_sentences_give_the_same_page(text: str) -> None:
    assert translate(text, lambda sentence: sentence) == text


def test_tags_follow_the_words_that_they_enclose() -> None:
    text = '<p>The <b>black</b> cat sat on the <a href="/mat">mat</a>.</p>'
    assert translate(text) == '<p>die <b>schwarze</b> Katze saß auf die <a href="/mat">Matte</a>.</p>'
    assert translate("<p>cat <i>black</i> the</p>", backwards) == "<p>the <i>black</i> cat</p>"
    assert translate("<b>the</b> <i>cat</i> sat", backwards) == "sat <i>cat</i> <b>the</b>"


def test_line_breaks_of_html_are_spaces() -> None:
    text = "<p>The black\n   <b>cat</b>\r\n sat.\nHello\n</p>\n"
    page = MarkedText(text, "en", joins_lines=True)
    assert page.sentences == ["The black cat sat.", "cat", "Hello"]
    assert page.join(page.sentences) == text  # what did not change has its line breaks
    assert page.join([by_word(s) for s in page.sentences]) == "<p>die schwarze <b>Katze</b> saß.\nhallo\n</p>\n"
    assert MarkedText(text, "en").sentences[0] == "The black"


def test_nested_tags_stay_nested() -> None:
    assert translate("hello <b>the <i>black</i> cat</b> sat") == "hallo <b>die <i>schwarze</i> Katze</b> saß"


def test_words_that_are_not_found_again_get_their_tags_by_position() -> None:
    answers = {"the cat sat": "alpha beta gamma", "cat": "never found"}
    assert translate("the <b>cat</b> sat", lambda s: answers[s]) == "alpha <b>beta</b> gamma"


def test_words_whose_small_ones_changed_are_found_by_the_longest() -> None:
    answers = {"go to the shop, now": "geh jetzt, und zwar in den Laden", "the shop": "Der Laden."}
    assert translate("go to <b>the shop</b>, now", lambda s: answers[s]) == "geh jetzt, und zwar in <b>den Laden</b>"
    answers = {"see it in the old house": "im Haus, im alten Haus, sieh es", "the old house": "das alte Haus"}
    assert translate("see it in <b>the old house</b>", lambda s: answers[s]) == "im Haus, <b>im alten Haus</b>, sieh es"
    answers = {"a to the bat": "die zum Bad", "the bat": "das Bad"}  # too short to be sure
    assert translate("a to <b>the bat</b>", lambda s: answers[s]) == "die <b>zum Bad</b>"


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


def test_a_picture_in_a_page_is_no_text() -> None:
    picture = f'<img alt="the cat" src="data:image/png;base64,{"iVBORw0K" * 20_000}">'
    page = MarkedText(f"<p>the cat</p>{picture}<p>sat</p>", "en")
    assert page.sentences == ["the cat", "sat"]


@pytest.mark.parametrize("mark", ['<a "', "<a '", '<a "" ', "<a \"'", "<a x=\"<b' y='\"", "<a", "\"<b'\"'<b\"'"])
def test_unfinished_tags_do_not_take_for_ever(mark: str) -> None:
    text = mark * 100_000
    start = time.process_time()  # of this process alone
    page = MarkedText(text, "en")
    assert page.join(page.sentences).count("<") + page.join(page.sentences).count("&lt;") == text.count("<")
    assert time.process_time() - start < 60


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
    joined = MarkedText(text, "en", joins_lines=True)
    assert joined.join(joined.sentences) == text
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


# --- XML ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain &amp; simple",
        '<?xml version="1.0"?><doc><P>Hello <B>you</B>.</P>\n<P>Bye.</P></doc>',
        "<a><b><c/></b></a> text <x y='>'/> more",
        "<a>One.</a><a>Two.</a>",
        "a <![CDATA[ <b> hello ]]> b",
        "<!-- <open> --> hello",
        "a \xa0 b",
        "<a:b c:d='e'>hello</a:b>",
    ],
)
def test_unchanged_sentences_give_the_same_xml(text: str) -> None:
    assert translate(text, lambda sentence: sentence, Xml()) == text


def test_what_begins_in_a_comment_ends_with_it() -> None:
    text = '<a><!-- <x t="--><b>the</b> cat" ></a>'
    assert translate(text, lambda sentence: sentence, Xml()) == text.replace('" >', '" &gt;')
    assert "the cat" in MarkedText(text, "en", xml=Xml()).sentences[0]


def test_tags_of_xml_separate_unless_there_is_text_beside_them() -> None:
    assert MarkedText("<d><t>The cat</t><s>The <b>black</b> cat</s></d>", "en", xml=Xml()).sentences == [
        "The cat",
        "The black cat",
        "black",
    ]
    assert translate("<d><x>the <i>black</i> cat</x></d>", backwards, Xml()) == "<d><x>cat <i>black</i> the</x></d>"
    assert translate("hello <br/>cat", backwards, Xml()) == "cat <br/>hello"


def test_what_is_known_of_tags_goes_before_the_outline() -> None:
    text = "the <br/>black cat <k>the cat</k>"
    assert MarkedText(text, "en", xml=Xml()).sentences[0] == "the black cat the cat"
    known = Xml(separating=frozenset({"br"}), untouched=frozenset({"k"}))
    assert MarkedText(text, "en", xml=known).sentences == ["the", "black cat"]
    assert translate(text, by_word, known) == "die <br/>schwarze Katze <k>the cat</k>"
    cells = "<r><c>the</c> <c>cat</c></r>"
    assert MarkedText(cells, "en", xml=Xml()).sentences == ["the", "cat"]
    assert MarkedText(cells, "en", xml=Xml(inside=frozenset({"c"}))).sentences[0] == "the cat"
    assert MarkedText(cells, "en", xml=Xml(by_outline=False)).sentences[0] == "the cat"


@pytest.mark.parametrize(
    "text", ["<a>", "</a>", "<a><b></a></b>", "<a></A>", "<a/></a>", "<!-- open", "<![CDATA[ open", "<a></a></b>"]
)
def test_xml_that_is_not_well_formed_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="close each tag, in order"):
        MarkedText(text, "en", xml=Xml())


XML_FRAGMENTS = st.sampled_from("the|cat.| |hello|<b>|</b>|<p>|</p>|<x/>|!|Sat on|&lt;|<!-- c -->".split("|"))


@given(st.lists(XML_FRAGMENTS, max_size=14), st.sampled_from([by_word, backwards, lambda s: s[:3], lambda s: s]))
def test_xml_stays_well_formed_and_keeps_its_tags(parts: list[str], model: Callable[[str], str]) -> None:
    text = "".join(parts)
    try:
        etree.fromstring(f"<root>{text}</root>")
    except etree.XMLSyntaxError:
        with pytest.raises(InputError):
            MarkedText(text, "en", xml=Xml())
        return
    result = translate(text, model, Xml())
    assert tags(result) == tags(text)
    etree.fromstring(f"<root>{result}</root>")
    assert translate(text, lambda s: s, Xml()) == text


# --- Markdown ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\n",
        "a *b* c **d** e __f__ _g_.",
        "* open and [half",
        "a [link](http://x.y/z?a=b_c*d) and [one][ref] and ![image](x.png).",
        "`code *x*` and snake_case_name and 2*3*4",
        "**One. Two** three. *Four*",
        "| a | **b** |",
        "*a **b c* d**",
        "<http://x.y> a & b < c",
        "]( [[[ ** ** __ *",
        "\\*a\\* *b\\* c* `\\` d \\[e\\](f) 1\\. g\\_h \\\\ \\i \\.\\\n",
    ],
)
def test_unchanged_sentences_give_the_same_markdown(text: str) -> None:
    page = MarkedText(text, "en", parse_markup=parse_inline_markdown)
    assert page.join(page.sentences) == text


@pytest.mark.parametrize(
    ("text", "shown", "target", "written"),
    [
        (r"\*not emphasis\*", "*not emphasis*", "*keine Betonung*", r"\*keine Betonung\*"),
        (r"a snake\_case name", "a snake_case name", "ein Name snake_case", r"ein Name snake\_case"),
        (r"\# b. c", "# b. c", "# d. e", r"\# d. e"),
        (r"1\. b. c", "1. b. c", "1. d. e", r"1\. d. e"),
        (r"\*a\* b", "*a* b", "*b", r"\*b"),
        (r"a \` b ` c", "a ` b ` c", "d ` e", r"d \` e"),
        (r"a \[b\](c) d", "a [b](c) d", "e [f](g) h", r"e \[f\](g) h"),
        (r"a \| b", "a | b", "c | d", r"c \| d"),
        ("the end\\\n", "the end", "das Ende", "das Ende\\\n"),
        (r"a\b", r"a\b", r"c\d", r"c\d"),
    ],
)
def test_a_backslash_stays_with_its_mark(text: str, shown: str, target: str, written: str) -> None:
    page = MarkedText(text, "en", by_sentence=False, parse_markup=parse_inline_markdown)
    assert page.sentences == [shown]
    assert page.join([target]) == written


def test_a_backslash_inside_emphasis_stays_there() -> None:
    page = MarkedText(r"The *black\_cat* sat \*here\*.", "en", parse_markup=parse_inline_markdown)
    assert page.sentences == ["The black_cat sat *here*.", "black_cat"]
    assert page.join(["*Hier* saß black_cat.", "black_cat"]) == r"\*Hier\* saß *black\_cat*."


def test_emphasis_is_taken_out_of_sentences_and_put_back() -> None:
    page = MarkedText("The **black** cat sat on the [mat](x).", "en", parse_markup=parse_inline_markdown)
    assert page.sentences[0] == "The black cat sat on the mat."
    assert (
        page.join([by_word(sentence) for sentence in page.sentences])
        == "die **schwarze** Katze saß auf die [Matte](x)."
    )


@given(st.text(alphabet="ab *_[]()`!|<>.\n\\", max_size=40), st.booleans())
def test_markdown_comes_out_whole(text: str, joins_lines: bool) -> None:
    for cut in (parse_inline_markdown, parse_plain):
        page = MarkedText(text, "en", joins_lines=joins_lines, parse_markup=cut)
        assert page.join(page.sentences) == text


def test_a_line_of_marks_does_not_take_for_ever() -> None:
    start = time.process_time()  # of this process alone
    for mark in ("[", "*a", "**", "`", "![", "](", "<", "_a ", "\\*", "\\*a. "):
        page = MarkedText(mark * 50_000, "en", parse_markup=parse_inline_markdown)
        assert page.join(page.sentences) == mark * 50_000
    assert time.process_time() - start < 60


# --- placed by alignment ---


def test_elements_go_around_the_words_that_are_aligned_with_theirs() -> None:
    page = MarkedText("I <b>have</b> seen the <i>black</i> cat.", "en")
    target = "Die schwarze Katze habe ich gesehen."
    translations = [target, "haben", "Schwarz"]  # alone, both words are translated differently
    assert page.to_align(translations) == [("I have seen the black cat.", target)]
    # i have seen the black cat . -> die schwarze katze habe ich gesehen .
    weights = [[0.0] * 7 for _ in range(7)]
    for here, there in enumerate((3, 4, 5, 1, 0, 2, 6)):
        weights[here][there] = 0.8
        weights[here][(there + 1) % 7] = 0.2
    words = [tuple(match.span() for match in re.finditer(r"\w+|[.]", text)) for text in page.to_align(translations)[0]]
    found = TextAlignment(words[0], words[1], (), belonging(weights))
    assert page.join(translations, [found]) == "Die <i>schwarze</i> Katze <b>habe</b> ich gesehen."
    assert page.join(translations, [TextAlignment(*words)]) == page.join(translations)  # without attention


def test_an_aligned_element_stays_inside_its_parent_and_off_its_siblings() -> None:
    page = MarkedText("<a>one <b>two</b></a> <i>three</i> four", "en")
    translations = ["w x y z", "w x", "", ""]
    spans = [tuple(match.span() for match in re.finditer(r"\w+", text)) for text in page.to_align(translations)[0]]
    crossed = [[0.9, 0.0, 0.0, 0.1], [0.1, 0.4, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0], [0.0, 0.6, 0.0, 0.4]]
    joined = page.join(translations, [TextAlignment(spans[0], spans[1], (), belonging(crossed))])
    assert re.sub("<[^>]*>", "", joined) == "w x y z"
    assert joined.index("<a>") < joined.index("<b>") < joined.index("</b>") < joined.index("</a>")


def test_only_sentences_with_elements_inside_are_aligned() -> None:
    page = MarkedText("<p>Plain.</p><p><b>All of it.</b></p><p>A <b>part</b> of it.</p><p>So <b>so</b>.</p>", "en")
    translations = [text if text in ("So so.", "so") else text.upper() for text in page.sentences]
    assert page.to_align(translations) == [("A part of it.", "A PART OF IT.")]
    with pytest.raises(ValueError, match=r"shorter|longer"):
        page.join(translations, [TextAlignment(), TextAlignment()])
