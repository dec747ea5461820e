"""What text languages know of actions: the order of arguments, which one is the body, and how a word becomes a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from sandbox.frozen import dataclass

from .decoding import checked, decoded_value

# Arguments that hold text as it is to stand in a file, or as it is to be run. Of the first every line break counts; around the
# second, line breaks are only how it was laid out; around all others, white space is.
FILE_TEXT = frozenset({"content", "text", "old_text", "new_text"})
CODE = frozenset({"command", "code"})
# Arguments whose text may be the rest of a command line, unquoted.
SPOKEN = CODE | {"thought", "summary", "content", "reason", "message", "question"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an action; ``kinds`` are the JSON types it may have, empty if the schema does not say."""

    name: str
    kinds: frozenset[str]
    required: bool
    description: str = ""

    @property
    def is_text(self) -> bool:
        """Return whether any text is a valid value."""
        return "string" in self.kinds

    def value(self, text: str) -> Any:
        """Return ``text`` itself if text is allowed; otherwise its JSON value, if it is JSON."""
        if self.is_text:
            return text
        try:
            return checked(decoded_value(text))
        except ValueError:
            return text

    def body(self, text: str) -> Any:
        """Return the value of text between marks, without white space that is only layout."""
        if self.name in FILE_TEXT:
            return self.value(text.removeprefix("\n"))
        return self.value(text.strip("\r\n") if self.name in CODE else text.strip())


@dataclass(frozen=True, slots=True)
class Form:
    """An action as a text language sees it: required arguments first, each group in the order of the schema."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    terminal: bool = False

    @property
    def required(self) -> tuple[Parameter, ...]:
        """Return the required arguments."""
        return tuple(p for p in self.parameters if p.required)

    @property
    def body(self) -> Parameter | None:
        """Return the one required text; None if there are several, or none."""
        texts = [p for p in self.required if p.is_text]
        return texts[0] if len(texts) == 1 else None

    def parameter(self, name: str) -> Parameter | None:
        """Return the argument of that name, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    def ended(self, thought: str) -> dict[str, Any] | None:
        """Return arguments for ending the run with nothing but ``thought``; None if the action needs more."""
        if not self.required:
            return {"summary": thought.strip()} if self.parameter("summary") and thought.strip() else {}
        if self.body is None or len(self.required) > 1:
            return None
        return {self.body.name: thought.strip() or "Done."}


def forms_of(actions: Iterable[Action]) -> dict[str, Form]:
    """Return the forms of ``actions`` by name, sorted."""
    return {a.name: _form(a) for a in sorted(actions, key=lambda a: a.name)}


def ending(forms: Mapping[str, Form], thought: str) -> tuple[str, dict[str, Any]] | None:
    """Return what "exit" means: the first action that ends the run and needs no more than a thought."""
    for form in forms.values():
        args = form.ended(thought) if form.terminal and form.name != "reject" else None
        if args is not None:
            return form.name, args
    return None


def arguments_text(parameters: Sequence[Parameter], note: Mapping[str, str] | None = None) -> str:
    """Return one line per argument, for a prompt; ``note`` adds to the arguments that it names."""
    notes = note or {}
    lines = []
    for p in parameters:
        said = [_kind(p), *([] if p.required else ["optional"]), *([notes[p.name]] if p.name in notes else [])]
        lines.append(f"- {p.name} ({', '.join(said)}){f': {p.description}' if p.description else ''}")
    return "\n".join(lines)


def _form(action: Action) -> Form:
    schema = action.parameters
    needed = set(schema.get("required", ()))
    made = [
        Parameter(
            name, _kinds(prop), name in needed, str(prop.get("description", "")) if isinstance(prop, Mapping) else ""
        )
        for name, prop in schema.get("properties", {}).items()
    ]
    ordered = [*(p for p in made if p.required), *(p for p in made if not p.required)]
    return Form(action.name, action.description.strip(), tuple(ordered), action.terminal)


def _kinds(prop: Any) -> frozenset[str]:
    if not isinstance(prop, Mapping):
        return frozenset()
    found: set[str] = set()
    for one in (prop, *prop.get("anyOf", ()), *prop.get("oneOf", ())):
        kind = one.get("type", ()) if isinstance(one, Mapping) else ()
        found.update([kind] if isinstance(kind, str) else kind)
    if not found and isinstance(prop.get("enum"), list | tuple):
        found = {"string"} if all(isinstance(v, str) for v in prop["enum"]) else set()
    return frozenset(found)


_WORDS = {"string": "text", "integer": "number", "number": "number", "boolean": "true or false"}


def _kind(parameter: Parameter) -> str:
    kinds = sorted({_WORDS.get(k, f"JSON {k}") for k in parameter.kinds - {"null"}})
    return " or ".join(kinds) or "JSON"
