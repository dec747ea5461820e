"""Command lines: a word, then arguments by place. What a prompt says of them and what is read is made of one form."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from agent.status import LanguageError

from .decoding import checked, decoded_value
from .grammar import FILE_TEXT, SPOKEN, Form, Parameter

LINE_CHARS = 16_384  # a path has 4,096 at most
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})")


def marker(form: Form) -> str:
    """The line that ends a text of several lines."""
    return f"end_of_{form.name}"


def spoken(form: Form) -> Parameter | None:
    """The argument whose text is all that follows the word, unquoted; None for an action that has further ones to give."""
    body = form.body if form.required else next(iter(form.parameters), None)
    alone = len(form.required or form.parameters) == 1
    return body if body is not None and alone and body.is_text and body.name in SPOKEN else None


def written(form: Form) -> Parameter | None:
    """The argument that is written in lines of its own, up to the marker."""
    texts = [p for p in form.required if p.name in FILE_TEXT]
    return texts[0] if len(texts) == 1 and spoken(form) is None else None


def placed(form: Form) -> tuple[Parameter, ...]:
    """The arguments of the command line by place; none for an action that takes its arguments as JSON."""
    if in_json(form):
        return ()
    return tuple(p for p in form.parameters if p is not written(form) and (p.required or _short(p)))


def in_json(form: Form) -> bool:
    """Whether the arguments are more than a line can hold."""
    texts = [p for p in form.required if p.name in FILE_TEXT]
    return spoken(form) is None and (len(texts) > 1 or not all(_short(p) for p in form.required))


def usage(form: Form) -> str:
    """The form, as the prompt shows it."""
    if (text := spoken(form)) is not None:
        return f"{form.name} {text.name.upper()}"
    if in_json(form):
        return f"{form.name} {{{', '.join(f'{json.dumps(p.name)}: ...' for p in form.required)}}}"
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in placed(form)]
    line = re.sub(r"\bSTART END\b", "START:END", " ".join([form.name, *words]))
    text = written(form)
    return line if text is None else f"{line}\n{text.name.upper()}\n{marker(form)}"


def read_line(form: Form, rest: str) -> dict[str, Any]:
    """The arguments that follow the word on its line. Raises LanguageError."""
    if rest.startswith("{"):
        return _json(form, rest)
    if in_json(form):
        raise _misused(form, "takes its arguments as one JSON object")
    if len(rest) > LINE_CHARS:
        raise _misused(form, f"has a line of {len(rest)} characters, and {LINE_CHARS} are the most")
    try:
        words = shlex.split(rest)
    except ValueError:
        raise _misused(form, f"has a quote that is not closed: {rest[:80]!r}") from None
    places = placed(form)
    words = _split_ranges(words, places)
    if len(words) > len(places):
        raise _misused(form, f"takes at most {len(places)} argument{'' if len(places) == 1 else 's'}, not {len(words)}")
    return {p.name: p.value(word) for p, word in zip(places, words, strict=False)}


def line_of(form: Form, args: Mapping[str, Any]) -> str | None:
    """The command with these arguments, or None where no line says them."""
    text = spoken(form)
    if text is not None and set(args) == {text.name} and isinstance(args[text.name], str):
        return f"{form.name} {args[text.name]}"
    lines, places = written(form), placed(form)
    given = [p for p in places if p.name in args]
    known = {p.name for p in given} | ({lines.name} if lines else set())
    in_place = list(places[: len(given)]) == given and set(args) <= known
    if in_json(form) or spoken(form) is not None or not in_place:
        return None
    words = [shlex.quote(v) if isinstance(v, str) else json.dumps(v) for v in (args[p.name] for p in given)]
    if [p.name for p in given[:2]] == ["start", "end"]:
        words[:2] = [":".join(words[:2])]
    line = " ".join([form.name, *words])
    if lines is None:
        return line
    body = args.get(lines.name)
    if not isinstance(body, str):
        return None
    return f"{line}\n{body}{'' if body.endswith(chr(10)) or not body else chr(10)}{marker(form)}"


def _json(form: Form, rest: str) -> dict[str, Any]:
    try:
        value = checked(decoded_value(rest))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _misused(form, "is followed by what is no JSON object")
    return value


def _split_ranges(words: list[str], places: tuple[Parameter, ...]) -> list[str]:
    """``3:5`` for two numbers next to each other."""
    split: list[str] = []
    for word in words:
        pair = _RANGE.fullmatch(word)
        here = places[len(split) : len(split) + 2]
        if pair and len(here) == 2 and all("integer" in p.kinds for p in here):
            split += pair.groups()
        else:
            split.append(word)
    return split


def _short(parameter: Parameter) -> bool:
    return bool(parameter.kinds) and not parameter.kinds & {"object", "array"}


def _misused(form: Form, what: str) -> LanguageError:
    return LanguageError(f"The command {form.name} {what}.", f"Its form is: {usage(form)}")
