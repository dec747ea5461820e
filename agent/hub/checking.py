"""Looks over what a file declares before anything of it is made: names, options, schemas and texts, each with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from agent.frontmatter import AgentFileError, Section, Values
from agent.schemas import schema_problem

from . import catalogue, part_options, templates
from .spec import AgentSpec

_SINGLE = ("finish", "think")
Way = tuple[str | int, ...]


def look_over(spec: AgentSpec, found: Values, goals: Iterable[Section]) -> None:
    """Raises AgentFileError for names that are not there, options that do not fit, schemas that are none, and templates that cannot
    be filled in.
    """
    _names(spec, found)
    _actions(spec, found)
    for name in spec.actions:
        if name in catalogue.KITS:
            way = ("kit_options", name) if name in spec.kit_options else ("actions",)
            _options(f"the kit {name!r}", name, part_options.KITS, spec.kit_options.get(name, {}), found, way)
    what = f"the language {spec.language!r}"
    _options(what, spec.language, part_options.LANGUAGES, spec.language_options, found, ("language_options",))
    _memory(spec.memory, spec.memory_options, found, ("memory_options",))
    if spec.stuck is not None:
        _fits("stuck", part_options.STUCK, spec.stuck, found, ("stuck",))
    for key, schema in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        _schema(key, schema, found.line(key))
    for goal in goals:
        try:
            templates.check(goal.text, spec.inputs)
        except templates.AgentTextError as problem:
            inputs = ", ".join(f"inputs.{name}" for name in spec.inputs.get("properties", {})) or "no inputs"
            line = goal.line + problem.line - 1
            raise AgentFileError(f"{problem.what}; there are {inputs}", line, in_text=True) from problem


def _names(spec: AgentSpec, found: Values) -> None:
    from agent.tools.sandbox_tools import HOST_ONLY
    from sandbox.operations import OPERATIONS

    known = {*catalogue.KITS, *OPERATIONS, *_SINGLE} - HOST_ONLY - catalogue.OF_PYTHON
    for number, name in enumerate(spec.actions):
        _known("action", name, known, found.line("actions", number))
    _known("language", spec.language, catalogue.LANGUAGES, found.line("language"))
    _known("memory", spec.memory, catalogue.MEMORIES, found.line("memory"))
    for number, name in enumerate(spec.middleware):
        at = found.line("middleware", number)
        _known("middleware", name, catalogue.MIDDLEWARE, at)
        needed = catalogue.MIDDLEWARE_OF.get(name)
        if needed is not None and needed not in spec.actions:
            raise AgentFileError(f"the middleware {name!r} needs {needed!r} among the actions", at)
    for name in spec.kit_options:
        kits = [action for action in spec.actions if action in catalogue.KITS]
        _known("kit", name, kits, found.line("kit_options", name))


def _known(what: str, name: str, known: Iterable[str], line: int | None) -> None:
    names = sorted(known)
    if name not in names:
        if name in catalogue.OF_PYTHON:
            raise AgentFileError(f"the kit {name!r} cannot be named in a file: an agent with it is made in Python", line)
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"
        raise AgentFileError(f"there is no {what} {name[:80]!r}: {meant}", line)


def _actions(spec: AgentSpec, found: Values) -> None:
    """That a run can end, that no two actions have one name, and that an agent that only reads names none that writes."""
    if not {"finish", *catalogue.KITS} & set(spec.actions):
        raise AgentFileError('no action ends a run: add "finish"', found.line("actions"))
    from_: dict[str, str] = {}
    for number, part in enumerate(spec.actions):
        at = found.line("actions", number)
        if spec.read_only and part in catalogue.WRITING:
            raise AgentFileError(f"the agent is read_only, and {part!r} writes: take one of the two out", at)
        for action in catalogue.ACTIONS_OF.get(part, (part,)):
            if action in from_:
                raise AgentFileError(f"{part!r} and {from_[action]!r} both bring an action {action!r}: take one out", at)
            from_[action] = part


def _memory(name: Any, options: Mapping[str, Any], found: Values, way: Way) -> None:
    """The options of a memory, and of those below it."""
    own = {key: value for key, value in options.items() if key != "over"}
    _options(f"the memory {name!r}", name, part_options.MEMORIES, own, found, way)
    if "over" not in options:
        return
    over, way = options["over"], (*way, "over")
    if name not in part_options.LAYERED:
        raise AgentFileError(f"{_dotted(way)}: the memory {name!r} stands over no other", found.line(*way))
    if not isinstance(over, Mapping) or not isinstance(over.get("memory"), str):
        raise AgentFileError(f"{_dotted(way)} is written as {{memory: NAME, ...}}, not {over!r:.80}", found.line(*way))
    _known("memory", over["memory"], catalogue.MEMORIES, found.line(*way, "memory"))
    _memory(over["memory"], {key: value for key, value in over.items() if key != "memory"}, found, way)


def _options(
    what: str, name: str, schemas: Mapping[str, part_options.Schema], options: Mapping[str, Any], found: Values, way: Way
) -> None:
    schema = schemas.get(name, part_options.NONE)
    if schema is part_options.NONE and options:
        raise AgentFileError(f"{_dotted(way)}: {what} takes no options, not {next(iter(options))!r:.80}", found.line(*way))
    _fits(what, schema, options, found, way)
    together = part_options.TOGETHER.get(name)
    problem = together(options) if together is not None else None
    if problem is not None:
        raise AgentFileError(f"{_dotted(way)}: {problem}", found.line(*way))


def _fits(what: str, schema: part_options.Schema, options: Mapping[str, Any], found: Values, way: Way) -> None:
    if not options and not schema["required"]:
        return  # most files: nothing is imported for them
    problem = misfit(schema, options)
    if problem is not None:
        below, said = problem
        raise AgentFileError(f"{_dotted((*way, *below))}: {said} ({what})"[:400], found.line(*way, *below))


def misfit(schema: part_options.Schema, options: Mapping[str, Any]) -> tuple[Way, str] | None:
    """What does not fit first, as the way to it and why; None where all of it fits."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # 9.0 and true are integers of JSON, but no counts.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict: Any = extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    errors = strict(schema).iter_errors(options)
    for error in sorted(errors, key=lambda e: (len(e.absolute_path), str(e.absolute_path))):
        way: Way = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and error.validator_value is False:
            known = sorted(error.schema["properties"])
            wrong = next(key for key in error.instance if key not in known)
            near = difflib.get_close_matches(wrong, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            return (*way, wrong), f"there is no such option: {meant}"
        own_words = error.schema.get("says") if error.validator != "type" else None
        return way, f"{own_words}, not {error.instance!r:.80}" if own_words else error.message[:200]
    return None


def _dotted(way: Way) -> str:
    return ".".join(str(part)[:80] for part in way)


def _schema(key: str, schema: Mapping[str, Any], line: int | None) -> None:
    problem = schema_problem(schema)
    if problem is not None:
        raise AgentFileError(f"{key} are no JSON schema: {problem[:300]}", line)
