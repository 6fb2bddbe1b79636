"""Conversations as a model reads them: rendered with its own chat template, then as token ids.

A template comes with the model, so it may be a stranger's: it runs in Jinja's sandbox, within bounds on its steps and on what it
writes. The messages may be a stranger's, too: only the template's own control tokens become such tokens. The name of one in a
message stays text. Jinja is an extra, imported when a conversation is first rendered.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, reduce, wraps
from typing import Any

from regard.data.chat_template import ChatTemplate
from regard.data.tokenizer import Tokenizer
from regard.errors import InputError, UserError
from regard.escaping import escape, shorten

ROLES = ("system", "user", "assistant")
MAX_STEPS = 1_000_000  # of a template: calls, turns of a loop over a range, parts of its output
_MAX_ADDED = 1_000_000  # characters that a template may write beyond those of the messages
_MAX_SIZE = 10_000_000  # characters or items of anything that a template makes
_MAX_POWER, _MAX_BITS = 64, 1_024  # the largest exponent; of whole numbers that are multiplied
_WIDTH = re.compile(r"\d{5}|\*")  # in a format: a width that could fill the memory
# Inside a control token's name in a message: a code point that Unicode keeps out of all text. It is taken out again.
_MARK = "\ufdd1"

Message = Mapping[str, Any]


class Conversation:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._names = tokenizer, tokenizer.control_names
        # The longest first: a name may begin with another.
        names = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def ids(self, messages: str | Sequence[Message], opens_answer: bool = True) -> list[int]:
        """The ids of a conversation, up to where the answer begins; without `opens_answer`, up to the end of the last message. A
        string is one message of a user."""
        checked = check_messages(messages)
        marked = [{"role": one["role"], "content": self._marked(one["content"])} for one in checked]
        rendered = self._template.render(marked, opens_answer)
        parts: list[str | int] = []
        place = 0
        for found in self._pattern.finditer(rendered):
            parts += [rendered[place : found.start()].replace(_MARK, ""), self._names[found[0]]]
            place = found.end()
        parts.append(rendered[place:].replace(_MARK, ""))
        return self._tokenizer.encode_controls([part for part in parts if part != ""])

    @cached_property
    def _template(self) -> SafeTemplate:
        template = self._tokenizer.chat
        if template is None:
            raise UserError(
                "this model has no chat template, so it cannot hold a conversation; use generate without a chat, or import a model "
                "that was trained to answer"
            )
        return SafeTemplate(template)

    def _marked(self, content: str) -> str:
        """A message in which no name of a control token stands, also none that begins or ends with it."""
        content = content.replace(_MARK, "\ufffd")
        content = self._pattern.sub(lambda found: found[0][:1] + _MARK + found[0][1:], content)
        inner = content.strip()
        if not inner:
            return content
        start = content.index(inner)
        last = max((_overlap(inner, name) for name in self._names), default=0)
        first = max((_overlap(name, inner) for name in self._names), default=0)
        end = (
            inner
            if not last
            else inner[: len(inner) - last] + inner[len(inner) - last] + _MARK + inner[len(inner) - last + 1 :]
        )
        whole = end if not first else end[: first - 1] + _MARK + end[first - 1 :]
        return content[:start] + whole + content[start + len(inner) :]


def _overlap(text: str, name: str) -> int:
    """How many characters at the end of the text begin the name, fewer than all of it."""
    return next((n for n in range(min(len(name) - 1, len(text)), 0, -1) if text.endswith(name[:n])), 0)


def check_messages(messages: str | Sequence[Message]) -> list[dict[str, str]]:
    """The messages of a conversation, each with a role and a text.

    >>> check_messages("Hello!")
    [{'role': 'user', 'content': 'Hello!'}]
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not messages:
        raise InputError("messages must be a list of at least one message; give {role: user, content: ...}")
    checked = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise InputError(f"{where} must be an object with role and content")
        if message.get("role") not in ROLES:
            raise InputError(f"{where}.role must be one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise InputError(f"{where}.content must be a text")
        if unknown := sorted(map(str, set(message) - {"role", "content"})):
            raise InputError(f"{where}.{shorten(unknown[0])[1:-1]} is not offered; leave it out")
        checked.append({"role": str(message["role"]), "content": message["content"]})
    return checked


def import_jinja() -> Any:
    """The package jinja2, or a UserError that says how to get it."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
        import jinja2.visitor
    except ModuleNotFoundError:
        raise UserError(
            "a conversation needs the package jinja2, which is not installed; pip install 'regard[chat]'"
        ) from None
    return jinja2


class SafeTemplate:
    """A chat template in a sandbox, with the names that transformers gives to templates."""

    def __init__(self, template: ChatTemplate) -> None:
        self._jinja, self._tokens = import_jinja(), dict(template.tokens)
        self._steps, self._lock = 0, threading.Lock()
        try:
            self._compiled = self._environment().from_string(template.source)
        except self._jinja.TemplateError as error:
            raise UserError(f"the model's chat template cannot be read: {_line(error)}") from None

    def render(self, messages: Sequence[Mapping[str, str]], opens_answer: bool = True) -> str:
        """The text of a conversation, up to where the answer begins, or up to the end of the last message."""
        with self._lock:
            return self._render(messages, opens_answer)

    def _render(self, messages: Sequence[Mapping[str, str]], opens_answer: bool) -> str:
        self._steps = 0
        most = _MAX_ADDED + sum(len(message["content"]) for message in messages)
        names = {**self._tokens, "messages": list(map(dict, messages)), "tools": None, "documents": None}
        parts, length = [], 0
        try:
            for part in self._compiled.generate(**names, add_generation_prompt=opens_answer):
                self._count()
                length += len(part)
                if length > most:
                    raise _Unbounded(f"writes more than {most:,} characters")
                parts.append(part)
        except _Unbounded as error:
            raise UserError(f"the model's chat template {error}; it is not safe to use") from None
        except self._jinja.TemplateError as error:
            raise InputError(f"the model's chat template refuses this conversation: {_line(error)}") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UserError(
                f"the model's chat template failed with this conversation ({type(error).__name__})"
            ) from None
        return "".join(parts)

    def _count(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Unbounded(f"takes more than {MAX_STEPS:,} steps")

    def _environment(self) -> Any:
        """Jinja's sandbox as transformers sets it up, with every call counted."""
        jinja, count = self._jinja, self._count

        class Environment(jinja.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc, name-defined]
            intercepted_binops = frozenset(("+", "*", "**", "%"))

            def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
                count()
                _check_arguments(called, (*args, *kwargs.values()))
                return super().call(context, called, *args, **kwargs)

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                _check_operands(operator, left, right)
                return super().call_binop(context, operator, left, right)

            def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
                return _with_sums(jinja, super()._parse(source, name, filename))

        def counting_range(*arguments: int) -> list[int]:
            whole = range(*arguments)
            if len(whole) > MAX_STEPS:
                raise _Unbounded(f"takes more than {MAX_STEPS:,} steps")
            for _ in whole:
                count()
            return list(whole)

        def raise_exception(message: object) -> None:
            raise jinja.TemplateError(str(message))

        def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)

        extensions = [_generation_tag(jinja), jinja.ext.loopcontrols]
        made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        made.filters |= {"tojson": tojson}
        made.filters = {name: _bounded(one) for name, one in made.filters.items()}
        made.globals |= {
            "range": counting_range,
            "raise_exception": raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        made.globals.pop("lipsum")
        return made


class _Unbounded(Exception):
    """A template that would take too much time or memory."""


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 0


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse sums, products, powers and formats that would fill the memory."""
    size = 0
    bits = [one.bit_length() for one in (left, right) if isinstance(one, int)]
    if operator == "**":
        is_small = isinstance(right, (int, float)) and abs(right) <= _MAX_POWER and sum(bits) <= _MAX_BITS
        size = 0 if is_small else _MAX_SIZE + 1
    elif operator == "*" and sum(bits) > _MAX_BITS:
        size = _MAX_SIZE + 1
    elif operator == "*":
        size = max(
            _size(one) * other for one, other in ((left, right), (right, left), ((), 0)) if isinstance(other, int)
        )
    elif operator == "+":
        size = _size(left) + _size(right)
    elif isinstance(left, str) and _WIDTH.search(left):
        size = _MAX_SIZE + 1
    if size > _MAX_SIZE:
        raise _Unbounded("makes something too large")


def _check_arguments(called: Any, arguments: Sequence[Any]) -> None:
    """Refuse a call whose result could fill the memory: a huge width or number, or many replacements by a long text."""
    own = getattr(called, "__self__", None)
    product = math.prod(max(1, _size(one)) for one in (own, *arguments))
    is_wide = any(isinstance(one, int) and abs(one) > _MAX_SIZE for one in arguments)
    is_format = getattr(called, "__name__", "") in ("format", "format_map", "do_format")
    texts = [one for one in (own, *arguments[:1]) if isinstance(one, str)]
    if product > 10 * _MAX_SIZE or is_wide or (is_format and any(map(_WIDTH.search, texts))):
        raise _Unbounded("makes something too large")


def _bounded(called: Any) -> Any:
    """A filter that checks its arguments first; Jinja's marks on it stay."""

    @wraps(called)
    def bounded(*arguments: Any, **named: Any) -> Any:
        _check_arguments(called, (*arguments, *named.values()))
        return called(*arguments, **named)

    return bounded


def _generation_tag(jinja: Any) -> Any:
    """{% generation %}, around what an assistant says: templates mark with it what is learnt, and here it changes nothing."""

    class GenerationTag(jinja.ext.Extension):  # type: ignore[misc]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    return GenerationTag


def _with_sums(jinja: Any, tree: Any) -> Any:
    """A template in which each `a ~ b` is a sum of texts, which the sandbox checks."""

    class Sums(jinja.visitor.NodeTransformer):  # type: ignore[misc]
        def visit_Concat(self, node: Any) -> Any:  # noqa: N802 - Jinja's name
            nodes = [self.visit(one) for one in node.nodes]
            texts = [jinja.nodes.Filter(one, "string", [], [], None, None, lineno=node.lineno) for one in nodes]
            return reduce(lambda left, right: jinja.nodes.Add(left, right, lineno=node.lineno), texts)

    whole = Sums().visit(tree)
    whole.set_environment(tree.environment)
    return whole


def _line(error: Exception) -> str:
    """The first line of a template's message, as it may be printed."""
    return escape(shorten(str(error).strip().split("\n")[0] or type(error).__name__)[1:-1])
