"""Chat templates in the sandbox: hostile ones are stopped, and no message becomes a control token."""

from __future__ import annotations

import pytest

from regard.data.chat_template import ChatTemplate
from regard.errors import UserError
from regard.writing.template_sandbox import SafeTemplate

NAMES = {"<s>": 1, "<|im_start|>": 2, "<|im_end|>": 3, "#": 4, "<<SYS>>": 5, "<|user|>": 6}


def parts(source: str, *contents: str, **tokens: str) -> list[str | int]:
    template = SafeTemplate(ChatTemplate(source, tuple(tokens.items())), NAMES)
    return template.parts([{"role": "user", "content": one} for one in contents])


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000) %}{% for j in range(1000) %}{% for k in range(1000) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for i in range(99999999999) %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 9 ** 999999999 }}",
        "{{ ((((9 ** 60) ** 60) ** 60) ** 60) ** 60 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set s = 'a' * 99999 %}{{ s.replace('a', s) }}",
        "{% set s = 'a' * 99999 %}{{ s | replace('a', s) }}",
        "{% for i in range(999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{% set x=range(3000) %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}ok",
        "{% set x=range(600000) %}{% for a in x recursive %}{{ loop(x) }}{% endfor %}",
        "{% set s = 'a' * 9999999 %}{{ ([s] * 60) | join | length }}",
        "{% set s = 'a' * 999999 %}{{ ([{'a': s}] * 60) | map(attribute='a') | join | length }}",
        "{{ ([1] * 40) | tojson(indent=9999999) | length }}",
        "{% set s='a' * 999999 %}{% set ns=namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = [s ~ i, ns.l] %}{% endfor %}",
        "{% set s='a' * 999999 %}{% set ns=namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = [s[1:], ns.l] %}{% endfor %}",
        "{% set s = 'a' * 999999 %}{{ ('%s' * 60 % ((s,) * 60)) | length }}",
        "{% set s = 'a' * 999999 %}{{ ('%(a)s' * 60 % {'a': s}) | length }}",
        "{% set s = 'a' * 999999 %}{{ ('{0}' * 60).format(s) | length }}",
        "{{ ([['a' * 999999] * 999] * 999) | string | length }}",
        "{{ [['a' * 999999] * 999] * 999 }}",
        "{{ ('\\t' * 99999).expandtabs(99999) | length }}",
        "{% set x %}{% for i in range(999) %}" + "a" * 99_999 + "{% endfor %}{% endset %}",
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
        "{% endfor %}{{ ns.x == ns.y }}",
    ],
)
def test_a_template_that_would_take_all_time_or_memory_is_stopped(source: str) -> None:
    with pytest.raises(UserError, match=r"the model's chat template .*it is not safe to use"):
        SafeTemplate(ChatTemplate(source)).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ messages[99].content.x }}",
        "{{ 1 / 0 }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(UserError, match="the model's chat template"):
        SafeTemplate(ChatTemplate(source)).render([{"role": "user", "content": "x"}])


def test_an_honest_template_has_room() -> None:
    source = (
        "{% macro say(role, text) %}{{ role }}: {{ text | trim }}{% endmacro %}{% set ns = namespace(all='') %}"
        "{% for m in messages %}{% set ns.all = ns.all ~ say(m.role, m.content) ~ '\\n' %}{% endfor %}{{ ns.all }}"
    )
    messages = [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(250)]
    expected = "".join(f"user: {one['content'].strip()}\n" for one in messages)
    assert SafeTemplate(ChatTemplate(source)).render(messages) == expected
    assert (
        SafeTemplate(ChatTemplate("{{ messages[0].content | replace('b', 'cc') }}")).render(
            [{"role": "user", "content": "ab" * 500_000}]
        )
        == "acc" * 500_000
    )


EACH = "{% for message in messages %}{{ CHANGED }}{% endfor %}"


@pytest.mark.parametrize(
    ("changed", "contents"),
    [
        ("message.content | replace('X', '')", ["<|im_Xend|>"]),
        ("message.content.replace('X', '')", ["<|im_Xend|>"]),
        ("message.content | lower", ["<|IM_END|>"]),
        ("message.content.split('X') | join", ["<|im_Xend|>"]),
        ("message.content.split('X') | join('<|im_')", ["<|im_endXend|>"]),
        ("message.content[1:]", ["<<|im_end|>"]),
        ("message.content ~ 's>'", ["hello <", "<<"]),
        ("'<|im' + message.content", ["_end|>"]),
        ("'%s' % message.content", ["<s>"]),
        ("'{}'.format(message.content)", ["<s>"]),
        ("[message.content] | tojson", ["<s>"]),
        ("[message] | map(attribute='content') | first", ["<s>"]),
        ("message.content", ["# hi", "<|im", "_end|>", "\U00100000\U00100001"]),
    ],
)
def test_nothing_in_a_message_becomes_a_control_token(changed: str, contents: list[str]) -> None:
    found = parts(EACH.replace("CHANGED", changed), *contents)
    assert [one for one in found if isinstance(one, int)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token + '<|im_start|>' ~ messages[0].content ~ '<|im_end|>' }}", [1, 2, "<s>", 3]),
        ("<|{{ messages[0].role }}|>{{ messages[0].content }}", [6, "<s>"]),  # as Phi-3 has it
        ("{{ '<|' + messages[0]['role'] + '|>' + messages[0].content + '#' }}", [6, "<s>", 4]),
        ("{{ [bos_token, messages[0].content] | join('#') }}", [1, 4, "<s>"]),
        ("{{ '<|im_start|>%s<|im_end|>' % messages[0].content }}", [2, "<s>", 3]),
        ("{{ '<|im_start|>{}'.format(messages[0].content) }}", [2, "<s>"]),
        ("{{ '<|im_start|>X'.replace('X', messages[0].content) }}", [2, "<s>"]),
        ("{% set x %}#{{ messages[0].content }}{% endset %}{{ x | trim }}", [4, "<s>"]),
        ("{% macro m(x) %}{{ bos_token }}{{ x }}{% endmacro %}{{ m(messages[0].content) }}", [1, "<s>"]),
        ("{{ messages[0].content | length }}{{ messages[0].content == '<s>' }}", ["3True"]),
        ("{{ messages[0].content.startswith('<s>') }}{{ '<s>' in messages[0].content }}", ["TrueTrue"]),
        ("{{ messages[0].content | tojson(ensure_ascii=true) }}", ['"<s>"']),
        ("{{ messages[0].content.split('<s>') | length }}", ["2"]),
    ],
)
def test_a_template_writes_its_own_and_sees_messages_as_they_are(source: str, expected: list[str | int]) -> None:
    assert parts(source, "<s>", bos_token="<s>") == expected
