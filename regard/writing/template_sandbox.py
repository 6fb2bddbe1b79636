"""Renders a model's chat template so that neither the template nor the messages can do harm.

Templates come with models, so they are untrusted. They run in Jinja's sandbox, and every loop iteration, every call and the size of
every value count towards one `_Budget` per rendering.

Messages are untrusted, too: only text that the template itself writes can become a control token. The template's literals, its
tokens and the roles are `_Own` texts. Before such a text is combined with other text, the names of control tokens in it are
replaced by placeholders (`_Controls`), and only placeholders become control tokens. So text from a message stays text, whatever the
template does with it. Jinja is an extra, imported when a conversation is first rendered.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce, wraps
from itertools import groupby
from typing import Any

from regard.data.chat_template import ChatTemplate
from regard.errors import InputError, UserError
from regard.escaping import escape, shorten

MAX_STEPS = 1_000_000  # calls, filters, loop iterations and parts of the output
_MAX_SECONDS = 10.0  # CPU time of the rendering thread, so that other programs do not matter
_MAX_ADDED = 1_000_000  # characters that a template may add to those of the messages
_MAX_SIZE = 20_000_000  # characters and items of all values that a template computes
_PER_CHARACTER = 100  # added to that for each character of the messages
_MAX_POWER, _MAX_BITS = 64, 1_024  # the largest exponent; bits of the largest integer
_ITEM = 8  # an item of a list counts as this many characters
_MAX_INDENT = 100
_INDENTING = ("tojson", "do_indent", "expandtabs")  # may write their width many times
_WIDTH = re.compile(r"\d{5}|\*")  # in a format: a width that could fill the memory
_COMBINING = (
    "join",
    "do_join",
    "format",
    "format_map",
    "do_format",
    "replace",
    "do_replace",
)  # make one text of several
_FIRST = 0x100000  # the first placeholder: code points of the last private-use plane


class SafeTemplate:
    """A chat template in a sandbox, with the variables and functions that transformers gives to templates."""

    def __init__(self, template: ChatTemplate, names: Mapping[str, int] | None = None) -> None:
        """`names`: the ids of the model's control tokens, by name."""
        self._jinja, self._controls = import_jinja(), _Controls(names or {})
        self._tokens = {name: _Own(text) for name, text in template.tokens}
        self._budget, self._lock = _Budget(), threading.Lock()
        try:
            self._compiled = self._environment().from_string(template.source)
        except (self._jinja.TemplateError, RecursionError, SyntaxError) as error:
            raise UserError(f"the model's chat template cannot be read: {_line(error)}") from None

    def parts(self, messages: Sequence[Mapping[str, str]], opens_answer: bool = True) -> list[str | int]:
        """A conversation as texts and ids of control tokens, up to where the answer begins or to the end of the last message."""
        clean = [
            {**one, "role": _Own(one["role"]), "content": self._controls.without(one["content"])} for one in messages
        ]
        with self._lock:
            return self._controls.split(self._render(clean, opens_answer))

    def render(self, messages: Sequence[Mapping[str, str]], opens_answer: bool = True) -> str:
        """As `parts`, as one text."""
        return "".join(
            one if isinstance(one, str) else self._controls.name(one) for one in self.parts(messages, opens_answer)
        )

    def _render(self, messages: Sequence[Mapping[str, str]], opens_answer: bool) -> str:
        given = sum(len(message["content"]) for message in messages)
        self._budget.begin(given)
        names = {**self._tokens, "messages": list(map(dict, messages)), "tools": None, "documents": None}
        parts, length = [], 0
        try:
            for part in self._compiled.generate(**names, add_generation_prompt=opens_answer):
                length += len(part)
                if length > _MAX_ADDED + given:
                    raise _Unbounded(f"writes more than {_MAX_ADDED + given:,} characters")
                parts.append(part)
        except _Unbounded as error:
            raise UserError(f"the model's chat template {error}; it is not safe to use") from None
        except self._jinja.TemplateError as error:
            raise InputError(f"the model's chat template refuses this conversation: {_line(error)}") from None
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise UserError(
                f"the model's chat template failed with this conversation ({type(error).__name__})"
            ) from None
        return self._controls.joined(parts)

    def _environment(self) -> Any:
        """Jinja's sandbox, set up as in transformers, under the budget."""
        jinja, budget, controls = self._jinja, self._budget, self._controls

        class Environment(jinja.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc, name-defined]
            intercepted_binops = frozenset(("+", "*", "**", "%"))
            concat = staticmethod(controls.joined)

            def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
                if isinstance(called, jinja.runtime.LoopContext):  # a recursive loop: its iterations
                    budget.step(len(args[0]) if args and isinstance(args[0], (list, tuple, dict, str)) else 1)
                method = getattr(called, "__wrapped__", called)  # the sandbox wraps format
                own = getattr(method, "__self__", None)
                if not isinstance(own, (str, bytes)):
                    budget.step()
                    return budget.made(super().call(context, called, *args, **kwargs))
                name = method.__name__
                budget.check_call(name, (own, *args, *kwargs.values()))
                all_own = _are_own((own, *args, *kwargs.values()))
                if name in _COMBINING and not all_own:
                    own, args = controls.sealed(own), controls.sealed_for(name, (own, *args))[1:]
                    called, kwargs = self.getattr(own, name), {key: controls.sealed(one) for key, one in kwargs.items()}
                found = super().call(context, called, *args, **kwargs)
                return budget.made(_marked(found, all_own))

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                budget.check_operands(operator, left, right)
                all_own = _are_own((left, right))
                if not all_own and (isinstance(left, str) or isinstance(right, str)):
                    left, right = controls.sealed(left), controls.sealed(right)
                found = super().call_binop(context, operator, left, right)
                return budget.made(_marked(found, all_own))

            def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
                return _guarded(jinja, super()._parse(source, name, filename))

        def bounded(called: Callable[..., Any]) -> Callable[..., Any]:
            """A filter or test under the budget, with Jinja's attributes kept."""
            name = getattr(called, "__name__", "")
            skipped = 1 if hasattr(called, "jinja_pass_arg") else 0  # Jinja's own first argument

            @wraps(called)
            def bounded(*args: Any, **kwargs: Any) -> Any:
                inner, args = args[:skipped], args[skipped:]
                if name == "do_join" and args and not isinstance(args[0], str):
                    args = (list(args[0]), *args[1:])
                budget.check_call(name, (*args, *kwargs.values()))
                all_own = _are_own((*args, *kwargs.values()))
                if name in _COMBINING and not all_own:
                    args = controls.sealed_for(name, args)
                    kwargs = {key: controls.sealed(one) for key, one in kwargs.items()}
                found = called(*inner, *args, **kwargs)
                if isinstance(found, Iterator):
                    return budget.counted(found)
                return budget.made(_marked(found, all_own))

            return bounded

        def finalize(value: Any) -> Any:
            budget.step()
            if not isinstance(value, str):
                budget.expect(_deep_size(value, budget.left))
                value = _Own(value) if _are_own((value,)) else str(value)
            return budget.made(value)

        def raise_exception(message: object) -> None:
            raise jinja.TemplateError(str(message))

        def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)

        extensions = [_generation_tag(jinja), jinja.ext.loopcontrols]
        made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=finalize)
        made.filters |= {"tojson": tojson}
        made.filters = {name: bounded(one) for name, one in made.filters.items()}
        made.tests = {name: bounded(one) for name, one in made.tests.items()}
        # The filters that `_guarded` inserts. `pass_context` keeps Jinja from folding them as constants.
        made.filters |= {
            "own": jinja.pass_context(lambda _, text: _Own(text)),
            "turns": jinja.pass_context(lambda _, values: budget.counted(values)),
            "made": jinja.pass_context(lambda _, value: budget.made(value)),
            "small": jinja.pass_context(lambda _, value: budget.small(value)),
        }
        made.globals |= {
            "range": lambda *numbers: budget.range(*numbers),
            "raise_exception": raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        made.globals.pop("lipsum")
        return made


def import_jinja() -> Any:
    """The package jinja2, or a UserError that says how to install it."""
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


# --- control tokens ---


class _Own(str):
    """Text from the template itself."""

    __slots__ = ()

    def __str__(self) -> str:  # so that Jinja's str() keeps it
        return self


def _marked(value: Any, is_own: bool) -> Any:
    """Mark a text that was made from own texts alone."""
    return _Own(value) if is_own and isinstance(value, str) else value


def _are_own(values: Iterable[Any]) -> bool:
    """Whether these values certainly contain nothing from a message."""
    for one in values:
        if isinstance(one, _Own) or one is None or isinstance(one, (int, float)):
            continue
        if isinstance(one, dict):
            one = (*one.keys(), *one.values())
        if not isinstance(one, (list, tuple)) or not _are_own(one):
            return False
    return True


class _Controls:
    """The control tokens of a model and their placeholders in a text."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._names = {name: i for name, i in names.items() if name}
        self._placeholders = {name: chr(_FIRST + n) for n, name in enumerate(self._names)}
        self._shown = {number: name for name, number in self._names.items()}
        # The longest first: a name may begin with another.
        longest = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        last = chr(_FIRST + max(0, len(self._names) - 1))
        self._hidden = re.compile(f"([{chr(_FIRST)}-{last}])")

    def name(self, number: int) -> str:
        """The name of a control token."""
        return self._shown[number]

    def without(self, text: str) -> str:
        """A message with its own placeholder characters replaced."""
        return self._hidden.sub("\ufffd", text)

    def sealed(self, value: Any) -> Any:
        """A value that is about to be combined with other text: control tokens in own texts become placeholders."""
        if isinstance(value, _Own):
            return str.__str__(self._pattern.sub(lambda found: self._placeholders[found[0]], value))
        if type(value) in (list, tuple):
            return type(value)(map(self.sealed, value))
        if type(value) is dict:
            return {key: self.sealed(one) for key, one in value.items()}
        return value

    def sealed_for(self, name: str, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of a call that combines texts. The text that `replace` searches for is left alone."""
        looked_for = 1 if name.endswith("replace") else -1
        return tuple(one if n == looked_for else self.sealed(one) for n, one in enumerate(args))

    def joined(self, parts: Iterable[str]) -> str:
        """The parts of an output as one text. Adjacent own texts may spell a name together."""
        runs = [(own, "".join(run)) for own, run in groupby(parts, lambda one: isinstance(one, _Own))]
        if all(own for own, _ in runs) and runs:
            return _Own(runs[0][1])
        return "".join(self.sealed(_Own(text)) if own else text for own, text in runs)

    def split(self, text: str) -> list[str | int]:
        """A rendered text as parts, with placeholders replaced by the ids of control tokens."""
        sealed = self.sealed(_Own(text)) if isinstance(text, _Own) else text
        ids = list(self._names.values())
        found = [ids[ord(one) - _FIRST] if n % 2 else one for n, one in enumerate(self._hidden.split(sealed))]
        return [one for one in found if one != ""]


# --- time and memory ---


class _Unbounded(Exception):
    """The template would take too much time or memory."""


class _Budget:
    """The time and memory that one rendering may use."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, characters: int) -> None:
        """Begin a rendering of messages with this many characters in all."""
        self._steps, self.left = 0, _MAX_SIZE + _PER_CHARACTER * characters
        self._end = time.thread_time() + _MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Count steps."""
        self._steps += count
        if self._steps > MAX_STEPS:
            raise _Unbounded(f"takes more than {MAX_STEPS:,} steps")
        if time.thread_time() > self._end:
            raise _Unbounded(f"takes more than {_MAX_SECONDS:g} seconds")

    def expect(self, size: int) -> None:
        """Refuse a value of this size if it exceeds the budget."""
        if size > self.left:
            raise _Unbounded("makes something too large")

    def made(self, value: Any) -> Any:
        """Count the size of a new value, including the texts in a list."""
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise _Unbounded("makes something too large")
        size = _size(value)
        if isinstance(value, (list, tuple)):
            size += sum(len(one) for one in value if isinstance(one, (str, bytes)))
        self.expect(size)
        self.left -= size
        return value

    def small(self, value: Any) -> Any:
        """Refuse to compare or read a value that is too large."""
        self.expect(_deep_size(value, self.left))
        return value

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """Count each value as it is consumed."""
        for value in values:
            self.step()
            self.left -= _ITEM
            yield value

    def range(self, *numbers: int) -> list[int]:
        """A list whose items count."""
        whole = range(*numbers)
        self.step(min(len(whole), MAX_STEPS + 1))  # a huge one is never made
        return list(whole)

    def check_call(self, name: str, values: Sequence[Any]) -> None:
        """Count a call, and refuse one whose result could fill the memory: a huge width or number, many long replacements."""
        self.step()
        sizes = sorted((_deep_size(one, self.left) for one in values), reverse=True)
        self.expect(math.prod(sizes[:2]))
        widest = max((abs(one) for one in values if isinstance(one, int)), default=0)
        if widest > (_MAX_INDENT if name in _INDENTING else _MAX_SIZE // 2):
            raise _Unbounded("makes something too large")
        if "format" in name:
            self._check_format([one for one in values if isinstance(one, str)][:1], "{", sum(sizes) + widest)

    def check_operands(self, operator: str, left: Any, right: Any) -> None:
        """Refuse sums, products, powers and formats that would fill the memory."""
        self.step()
        bits = sum(one.bit_length() for one in (left, right) if isinstance(one, int))
        if operator == "**" and not (
            isinstance(right, (int, float)) and abs(right) <= _MAX_POWER and bits <= _MAX_BITS
        ):
            raise _Unbounded("makes something too large")
        if operator == "*":
            pairs = ((left, right), (right, left))
            self.expect(max((_deep_size(one, self.left) * n for one, n in pairs if isinstance(n, int)), default=0))
        elif operator == "+":
            self.expect(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            self._check_format([left], "%", _deep_size(right, self.left) + len(left))

    def _check_format(self, forms: Sequence[str], sign: str, size: int) -> None:
        for form in forms:
            if _WIDTH.search(form):
                raise _Unbounded("makes something too large")
            self.expect(form.count(sign) * size)


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return _ITEM * len(value) if isinstance(value, (list, tuple, dict)) else 0


def _deep_size(value: Any, most: int) -> int:
    """The size of a value with everything in it; counting stops beyond `most`."""
    total, left = 0, [value]
    while left and total <= most:
        one = left.pop()
        one = getattr(one, "_Namespace__attrs", one)  # of Jinja's namespace()
        if isinstance(one, Mapping):
            one = (*one.keys(), *one.values())
        total += 1
        if isinstance(one, (str, bytes)):
            total += len(one)
        elif isinstance(one, (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))):
            total += _ITEM * len(one)
            left.extend(one)
    return total


# --- the template's source ---


def _generation_tag(jinja: Any) -> Any:
    """{% generation %}, with which templates mark the assistant's text for training; it has no effect here."""

    class GenerationTag(jinja.ext.Extension):  # type: ignore[misc]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    return GenerationTag


def _guarded(jinja: Any, tree: Any) -> Any:
    """Rewrite a template so that whatever takes time or memory counts towards the budget, and literals are own texts."""
    nodes = jinja.nodes

    def through(name: str, node: Any) -> Any:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    class Guard(jinja.visitor.NodeTransformer):  # type: ignore[misc]
        # ruff: noqa: N802 - Jinja's names
        def visit_Const(self, node: Any) -> Any:
            return through("own", node) if isinstance(node.value, str) else node

        def visit_TemplateData(self, node: Any) -> Any:
            return through("own", nodes.Const(node.data, lineno=node.lineno))

        def visit_Concat(self, node: Any) -> Any:  # a ~ b is a sum of texts
            texts = [through("string", self.visit(one)) for one in node.nodes]
            return reduce(lambda left, right: nodes.Add(left, right, lineno=node.lineno), texts)

        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.iter = through("turns", node.iter)
            return node

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            node.expr = through("small", node.expr)
            for operand in node.ops:
                operand.expr = through("small", operand.expr)
            return node

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            return through("made", node) if isinstance(node.arg, nodes.Slice) else node

    whole = Guard().visit(tree)
    whole.set_environment(tree.environment)
    return whole


def _line(error: Exception) -> str:
    """The first line of an error message, safe to print."""
    return escape(shorten(str(error).strip().split("\n")[0] or type(error).__name__)[1:-1])
