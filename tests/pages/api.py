"""Write docs/api from docstrings and signatures: one page per public module. Nothing else is public.

``python -m tests.pages`` writes the pages anew; ``tests/unit/house/test_generated_pages.py`` fails if they differ.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

# The public modules, and for those whose other names are internal the names that are public.
MODULES: dict[str, tuple[str, ...]] = {
    "sandbox": (),
    "sandbox.operations": (),
    "sandbox.ready": (),
    "sandbox.services": (),
    "sandbox.testing": (),
    "sandbox.docker.services.running_service": ("RunningService",),
    "sandbox.environment.sandboxed": ("SandboxedEnvironment",),
    "sandbox.readers": ("hint_for",),
    "agent": (),
    "agent.contracts": (),
    "agent.contracts.actions": (),
    "agent.contracts.observations": (),
    "agent.core.loop.layers": ("Layer",),
    "agent.core.loop.turns": ("Ask", "Call", "Do", "Prepare", "Remember"),
    "agent.core.loop.streaming": ("NoticeGiven", "ReplyDelta", "RunFinished", "ToolAnswered", "ToolCalled"),
    "agent.layers.approvals": (),
    "agent.layers.budget_line": ("BudgetLine",),
    "agent.errors": ("AgentErrorCode",),
    "agent.layers.finish_checks": (),
    "agent.hub": (),
    "agent.layers.inbox": (),
    "agent.record.lineage": (),
    "agent.record.file_changes": ("FileChanges",),
    "agent.record.resume": (),
    "agent.job.skills": (),
    "agent.record.store": (),
    "agent.tools": (),
}
OURS = ("sandbox", "agent")


def page_name(module: str) -> str:
    """Return the path of a module's page below docs/api."""
    return f"{module.partition('.')[0]}/{module}.md"


def public_names(module: ModuleType, chosen: tuple[str, ...]) -> list[str]:
    """Return the public names of a module: those chosen, else ``__all__``, else what it defines itself."""
    if chosen:
        return list(chosen)
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def _annotation(value: Any) -> str:
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)  # the name alone, without the path of its module
    return text.replace("NoneType", "None")


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    return "..." if " at 0x" in text or len(text) > 60 else text


def signature_of(value: Callable[..., Any], *, bound: bool = False) -> str:
    """Return the signature as text, with annotations as they are written; ``bound`` leaves out the first parameter."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parts: list[str] = []
    star = False
    for number, each in enumerate(signature.parameters.values()):
        if bound and number == 0:
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or each.kind is each.VAR_POSITIONAL
        sign = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        text = sign + each.name
        if each.annotation is not each.empty:
            text += f": {_annotation(each.annotation)}"
        if each.default is not each.empty:
            text += f" = {_default(each.default)}" if each.annotation is not each.empty else f"={_default(each.default)}"
        parts.append(text)
    answer = "" if signature.return_annotation is signature.empty else f" -> {_annotation(signature.return_annotation)}"
    return f"({', '.join(parts)}){answer}"


def _doc(value: Any) -> str:
    text = value.__doc__ if isinstance(value, property) else inspect.getdoc(value)
    return inspect.cleandoc(text or "").replace("``", "`")


def _is_ours(owner: type) -> bool:
    return owner.__module__.split(".")[0] in OURS


def _members(cls: type) -> Iterable[tuple[str, Any]]:
    """Yield public methods and properties, inherited ones too where a class of ours has them."""
    for name in sorted({name for base in cls.__mro__ if _is_ours(base) for name in vars(base) if not name.startswith("_")}):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        value = vars(owner)[name]
        if _is_ours(owner) and isinstance(value, property | staticmethod | classmethod | type(_members)):
            yield name, value


def _fields(cls: type) -> list[str]:
    """Return the rows of a table of fields: of a model, a dataclass or an enum."""
    if issubclass(cls, enum.Enum):
        return ["", "Values: " + ", ".join(f"`{each.value}`" for each in cls) + "."]
    rows = []
    if issubclass(cls, BaseModel):
        for name, field in cls.model_fields.items():
            default = "" if field.default is PydanticUndefined else f"`{_default(field.default)}`"
            default = default or ("" if field.default_factory is None else "empty")
            kind = _annotation(cls.__annotations__.get(name, field.annotation))
            rows.append((name, kind, default, field.description or ""))
    elif dataclasses.is_dataclass(cls):
        for each in dataclasses.fields(cls):
            if each.name.startswith("_"):
                continue
            default = "" if each.default is dataclasses.MISSING else f"`{_default(each.default)}`"
            default = default or ("" if each.default_factory is dataclasses.MISSING else "empty")
            rows.append((each.name, _annotation(each.type), default, ""))
    if not rows:
        return []
    described = any(row[3] for row in rows)
    head = ["", "| field | type | default |" + (" meaning |" if described else ""), "|---|---|---|" + ("---|" if described else "")]
    cells = [[f"`{name}`", f"`{kind}`", default, *([text] if described else [])] for name, kind, default, text in rows]
    return [*head, *("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in cells)]


def _method(name: str, value: Any, homes: dict[str, type]) -> list[str]:
    if isinstance(value, property):
        answer = getattr(value.fget, "__annotations__", {}).get("return", "")
        head = name + (f": {_annotation(answer)}" if answer else "")
    else:
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        head = name + signature_of(function, bound=not isinstance(value, staticmethod))
        head = f"async {head}" if inspect.iscoroutinefunction(function) else head
    return ["", f"### `{name}`", "", f"`{head}`", "", _resolved(_member_doc(value), homes)]


def _member_doc(value: Any) -> str:
    return _doc(value if isinstance(value, property) else getattr(value, "__func__", value))


def _resolved(text: str, homes: dict[str, type]) -> str:
    """Return a docstring with the one that it refers to (``See `Class.method`.``) in place of the reference."""
    found = re.match(r"See `(\w+)\.(\w+)`([.:;,] ?)", text)
    if found is None or found[1] not in homes or not hasattr(homes[found[1]], found[2]):
        return text
    owner = next(base for base in homes[found[1]].__mro__ if found[2] in vars(base))
    more = text[found.end() :].strip()
    return "\n\n".join(part for part in (_resolved(_member_doc(vars(owner)[found[2]]), homes), more[:1].upper() + more[1:]) if part)


def _class(name: str, cls: type, documented: dict[int, str], homes: dict[str, type]) -> list[str]:
    plain = issubclass(cls, enum.Enum | BaseModel) or dataclasses.is_dataclass(cls)
    lines = [f"## `{name}`", ""]
    if not plain:
        lines += [f"`{name}{signature_of(cls)}`", ""]
    elif issubclass(cls, BaseException):
        lines += [f"Exception `{name}`", ""]
    lines += [_doc(cls), *_fields(cls)]
    shared: dict[str, list[str]] = {}
    for member, value in _members(cls):
        known = documented.get(id(value))
        if known is not None:
            shared.setdefault(known, []).append(f"`{member}`")
        elif _member_doc(value):
            documented[id(value)] = name
            lines += _method(member, value, homes)
    for known, names in shared.items():
        lines += ["", f"As in `{known}`: {', '.join(names)}."]
    return [*lines, ""]


def page_of(name: str) -> str:
    """Return the page of one module."""
    module = importlib.import_module(name)
    names = public_names(module, MODULES[name])
    lines = [f"# `{name}`", ""]
    if not MODULES[name]:
        lines += [_doc(module), ""]
    lines += [f"Public: {', '.join(f'`{each}`' for each in names)}.", ""]
    documented: dict[int, str] = {}
    values = [getattr(module, each) for each in names]
    homes = {base.__name__: base for value in values if inspect.isclass(value) for base in value.__mro__ if _is_ours(base)}
    for each, value in zip(names, values, strict=True):
        if inspect.isclass(value):
            lines += _class(each, value, documented, homes)
        elif callable(value) and hasattr(value, "__name__"):
            lines += [f"## `{each}`", "", f"`{each}{signature_of(value)}`", "", _doc(value), ""]
        elif inspect.ismodule(value):
            lines += [f"## `{each}`", "", f"The module `{value.__name__}`.", ""]
        else:
            lines += [f"## `{each}`", "", f"A value of the type `{type(value).__name__}`.", ""]
    text = "\n".join(lines).rstrip() + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


INTRODUCTION = """\
# API

These pages are generated from the docstrings. **What they list is public**: it changes only with an entry in the
[changelog](../../CHANGELOG.md), and a name that is renamed keeps working for one release with a `DeprecationWarning`.
Everything else in `sandbox` and `agent` is internal and may change in any version.

| module | what it is |
|---|---|
"""


def pages() -> dict[str, str]:
    """Return all pages by their file names."""
    written = {page_name(name): page_of(name) for name in MODULES}
    rows = []
    for name, chosen in MODULES.items():
        summary = ", ".join(f"`{each}`" for each in chosen) or _doc(importlib.import_module(name)).split("\n\n")[0]
        rows.append(f"| [`{name}`]({page_name(name)}) | {' '.join(summary.split())} |")
    return {"index.md": INTRODUCTION + "\n".join(rows) + "\n", **written}
