"""What an agent file may say, as one pydantic model; every fault is reported with the line that it is in.

Nothing that a file names is imported, created or started when the file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from agent.core.goals import Goal
from sandbox.names import RULES, is_agent_name

from . import catalogue
from .frontmatter import AgentFileError, Section, Values, raise_all
from .options import KitOptions, Language, Memory, StuckOptions, Way, fault, suggestion
from .python_parts import PythonPartError, check, is_reference
from .spec import EMPTY, AgentSpec

TYPES = {
    "string": "string",
    "boolean": "boolean",
    "number": "number",
    "integer": "integer",
    "list": "array",
    "dict": "object",
}
_SINGLE = ("finish", "think")
_DEFAULT_PARTS = {"language": "function_calling", "memory": "window"}
_OPTIONS = {part: f"{part}_options" for part in _DEFAULT_PARTS}
# For the checks of a file whose own values of these keys are missing or wrong.
_PLACEHOLDERS = {"name": "agent", "description": "An agent.", **{part: {part: name} for part, name in _DEFAULT_PARTS.items()}}
# Taken over as they are written: the parts themselves take them.
_AS_WRITTEN = ("language", "language_options", "memory", "memory_options", "kit_options", "stuck")


def _name(value: Any) -> Any:
    if not is_agent_name(value):
        raise fault(f"must consist of {RULES['agent']}, not {value!r:.80}")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise fault(f"must be a text, not {value!r:.80}")
    return value.strip()


def _names(value: Any) -> Any:
    return tuple(_checked_names(value))


def _checked_names(value: Any, *way: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise fault(f"must be a list of names, not {value!r:.80}", *way)
    for number, item in enumerate(value):
        if item in value[:number]:
            raise fault(f"{item[:80]!r} is listed twice", *way, number)
    return value


def _object_schema(value: Any) -> Any:
    """Return a JSON schema of an object. Each name with the word of a type, or with a schema, becomes a required property."""
    fields = EMPTY if value is None else value
    if not isinstance(fields, Mapping):
        raise fault(f"must be a mapping, not {value!r:.80}")
    if fields.get("type") == "object":
        if not isinstance(fields.get("properties", {}), Mapping):
            raise fault("must be a mapping", "properties")
        _checked_names(fields.get("required", []), "required")
        return {"properties": {}, "required": [], "additionalProperties": False, **fields}
    properties = {name: _property(name, inner) for name, inner in fields.items()}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _property(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value in TYPES:
        return {"type": TYPES[value]}
    if isinstance(value, Mapping) and value:
        return value
    raise fault(f"must be one of {', '.join(TYPES)}, or a JSON schema, not {value!r:.80}", name)


Text = Annotated[str, BeforeValidator(_text)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
ObjectSchema = Annotated[Mapping[str, Any], BeforeValidator(_object_schema)]


def _standard_actions() -> tuple[str, ...]:
    from agent.tools import standard_registry

    return tuple(action.name for action in standard_registry().get_actions())


class AgentFile(BaseModel):
    """The keys of an agent file. A part and its options, which are two keys in the file, are one field here."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, BeforeValidator(_name)]
    description: Text
    actions: Names = Field(default_factory=_standard_actions)
    language: Language
    memory: Memory
    kit_options: KitOptions = KitOptions()
    inputs: ObjectSchema = EMPTY
    outputs: ObjectSchema = EMPTY
    middleware: Names = ()
    max_iterations: Annotated[int, Field(ge=1, le=100_000)] = 0  # 0 and "": not set; null is not a value
    image: Text = ""
    needs_repo: bool = False
    read_only: bool = False
    stuck: StuckOptions = StuckOptions()


class OldAgentFile(AgentFile):
    """The keys of a folder's agent.yaml: the first micro agents also had documentation there, and called the image container."""

    container: Text = ""
    examples: Any = None
    generates: Any = None


def spec_of(
    found: Values,
    goals: Sequence[Section],
    source: str,
    *,
    old: bool = False,
    trusted: bool = False,
    python_folder: Path | None = None,
) -> AgentSpec:
    """Return the spec that the keys and texts of a file make. ``old`` allows the further keys of ``OldAgentFile``; Python parts
    are looked for in ``python_folder``.

    Of ``trusted`` files, the product's own, only the keys are checked: tests check the rest. Raises AgentFileError, which has
    every fault of the file.
    """
    file, faults, wrong = _validated(OldAgentFile if old else AgentFile, found)
    if not trusted:
        for check, keys in _CHECKS:
            if wrong.isdisjoint(keys) and (more := list(check(file, found))):
                faults += more
                wrong.add(keys[0])
        faults += _python_faults(found, file.actions, wrong, python_folder)
        faults += () if "inputs" in wrong else _template_faults(file, goals)
    raise_all(faults)
    image = file.image or (file.container if isinstance(file, OldAgentFile) else "")
    return AgentSpec(
        name=file.name,
        description=file.description,
        goals=tuple(Goal(number, goal.name, goal.text) for number, goal in enumerate(goals, 1)),
        actions=file.actions,
        inputs=file.inputs,
        outputs=file.outputs,
        middleware=file.middleware,
        max_iterations=file.max_iterations or None,
        image=image or None,
        needs_repo=file.needs_repo,
        read_only=file.read_only,
        source=source,
        python_folder=python_folder,
        **{key: found.values[key] for key in _AS_WRITTEN if key in found.values},
    )


def _validated(model: type[AgentFile], found: Values) -> tuple[AgentFile, list[AgentFileError], set[str]]:
    """Return the values of the keys, the faults in them, and the keys that have one: those have their defaults instead."""
    known = sorted({*model.model_fields, *_OPTIONS.values()})
    faults = [
        AgentFileError(f"the key {key[:80]!r} is not known: {suggestion(key, known)}", found.line(key))
        for key in found.values
        if key not in known
    ]
    data = {key: value for key, value in found.values.items() if key in model.model_fields}
    for part, options_key in _OPTIONS.items():
        options = found.values.get(options_key, {})
        if not isinstance(options, dict):
            faults.append(_fault(found, (options_key,), f"must be a mapping, not {options!r:.80}"))
            options = {}
        elif part in options:
            faults.append(_fault(found, (options_key, part), "there is no such option"))
        data[part] = {**options, part: data.get(part, _DEFAULT_PARTS[part])}
    wrong: set[str] = set()
    try:
        file = model.model_validate(data)
    except ValidationError as error:
        located: dict[Way, str] = {}
        for each in error.errors(include_url=False):  # a value that fits none of several types has a fault for each
            located.setdefault(*_located(each, data))
        faults += [AgentFileError(words, found.line(*way)) for way, words in located.items()]
        wrong = {str(each["loc"][0]) for each in error.errors(include_url=False)}
        sound = {key: value for key, value in data.items() if key not in wrong}
        file = model.model_validate({**_PLACEHOLDERS, **sound})
    return file, faults, wrong


def _fault(found: Values, way: Way, words: str) -> AgentFileError:
    return AgentFileError(_sentence(way, words), found.line(*way))


def _located(error: ErrorDetails, data: Mapping[str, Any]) -> tuple[Way, str]:
    """Return where a fault is in the file, as the keys that lead to it, and the sentence that describes it."""
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    way = _in_file((*_in_data(error["loc"], data), *context.get("way", ())))
    if kind == "missing":
        key = str(error["loc"][-1])
        return way, _sentence(way, f"{key!r} is missing") if way else f"the key {key!r} is missing"
    if kind == "extra_forbidden":  # other models report unknown keys themselves
        kit = str(way[-1])
        return way, f"there is no kit {kit[:80]!r}: {suggestion(kit, sorted(KitOptions.model_fields))}"
    if kind.startswith("union_tag"):
        return _unknown_part(way, value)
    if kind == "fault":
        return way, _sentence(way, context["message"])
    return way, _sentence(way, f"{_words(kind, context) or error['msg']}, not {value!r:.80}")


def _unknown_part(way: Way, value: Any) -> tuple[Way, str]:
    """Return the place and description of a language or memory that does not exist; ``value`` has its name and options."""
    part, known = ("language", catalogue.LANGUAGES) if way[0] == "language_options" else ("memory", catalogue.MEMORIES)
    name = value.get(part) if isinstance(value, Mapping) else None
    at = (*way, part) if len(way) > 1 else (part,)
    if isinstance(name, str):
        return at, f"there is no {part} {name[:80]!r}: {suggestion(name, sorted(known))}"
    if len(way) > 1:
        return way, _sentence(way, f"must have the form {{memory: NAME, ...}}, not {value!r:.80}")
    return at, _sentence(at, f"must be a text, not {name!r:.80}")


_WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_type": "must be a mapping",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}


def _words(kind: str, context: Mapping[str, Any]) -> str:
    return _WORDS.get(kind, "").format_map(context)


def _in_data(location: tuple[int | str, ...], data: Any) -> Way:
    """Return the keys of ``data`` in a location of pydantic, which also has the tags of unions and of alternatives."""
    way: list[int | str] = []
    for part in location:
        inside = isinstance(data, Mapping) and part in data
        if inside or (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            way.append(part)
            data = data[part]
    return tuple(way)


def _in_file(way: Way) -> Way:
    """Return a way below a part as the file has it: an option of ``memory`` stands below ``memory_options``."""
    if way[:1] in (("language",), ("memory",)):
        return (way[0],) if way[1:] == way[:1] else (f"{way[0]}_options", *way[1:])
    return way


def _sentence(way: Way, words: str) -> str:
    where = ".".join(str(part)[:80] for part in way)
    return f"{where}{' ' if words.startswith(('must', 'needs', 'takes')) else ': '}{words}"[:400]


def _unknown_actions(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    """Yield the actions that do not exist, or that a file cannot name."""
    from agent.tools.sandbox_tools import HOST_ONLY
    from sandbox.operations import OPERATIONS

    known = sorted({*catalogue.KITS, *OPERATIONS, *_SINGLE} - HOST_ONLY - catalogue.OF_PYTHON)
    for number, name in enumerate(file.actions):
        line = found.line("actions", number)
        if name in catalogue.OF_PYTHON:
            yield AgentFileError(f"the kit {name!r} cannot be named in a file: its agents are made in Python", line)
        elif name not in known and not is_reference(name):
            yield AgentFileError(f"there is no action {name[:80]!r}: {suggestion(name, known)}", line)


def _unknown_middleware(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    for number, name in enumerate(file.middleware):
        if name not in catalogue.MIDDLEWARE:
            known = suggestion(name, sorted(catalogue.MIDDLEWARE))
            yield AgentFileError(f"there is no middleware {name[:80]!r}: {known}", found.line("middleware", number))


def _middleware_without_kit(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    for number, name in enumerate(file.middleware):
        kit = catalogue.MIDDLEWARE_OF.get(name)
        if kit is not None and kit not in file.actions:
            words = f"the middleware {name!r} needs {kit!r} among the actions"
            yield AgentFileError(words, found.line("middleware", number))


def _unused_options(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    """Yield options of kits that the agent does not have, and a kit without the options that it needs."""
    kits = sorted(kit for kit in file.actions if kit in catalogue.KITS)
    for name in sorted(file.kit_options.model_fields_set - set(kits)):
        line = found.line("kit_options", name)
        yield AgentFileError(f"there is no kit {name!r} among the actions: {suggestion(name, kits)}", line)
    if "mcp" in kits and file.kit_options.mcp is None:
        example = "kit_options: {mcp: {servers: {NAME: {command: ...}}}}"
        yield AgentFileError(f"the kit 'mcp' needs servers: {example}", found.line("actions"))


def _unfit_actions(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    """Yield what is wrong if an agent cannot end, has two actions of one name, or only reads and has one that writes."""
    if not {"finish", *catalogue.KITS} & set(file.actions) and not any(map(is_reference, file.actions)):
        yield AgentFileError('no action ends a run: add "finish"', found.line("actions"))
    part_of: dict[str, str] = {}
    for number, part in enumerate(file.actions):
        line = found.line("actions", number)
        if file.read_only and part in catalogue.WRITING:
            named = "actions" in file.model_fields_set
            advice = "remove one of the two" if named else "list the actions that it is to have"
            at = line if named else found.line("read_only")
            yield AgentFileError(f"the agent is read_only, and {part!r} writes: {advice}", at)
        for action in catalogue.ACTIONS_OF.get(part, (part.rpartition(":")[2],)):
            if action in part_of:
                both = f"{part!r} and {part_of[action]!r} both have an action {action!r}"
                yield AgentFileError(f"{both}: remove one of them", line)
            part_of[action] = part


def _invalid_inputs(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    yield from _invalid_schema("inputs", file.inputs, found)


def _invalid_outputs(file: AgentFile, found: Values) -> Iterator[AgentFileError]:
    yield from _invalid_schema("outputs", file.outputs, found)


def _invalid_schema(key: str, schema: Mapping[str, Any], found: Values) -> Iterator[AgentFileError]:
    from .schemas import schema_problem

    problem = None if schema is EMPTY else schema_problem(schema)
    if problem is not None:
        yield AgentFileError(f"{key} is not a JSON schema: {problem[:300]}", found.line(key))


# Each check, and the keys that it reads. One is left out if a key has a fault already, which it would only report again; its own
# faults are those of its first key.
_CHECKS: tuple[tuple[Callable[[AgentFile, Values], Iterator[AgentFileError]], tuple[str, ...]], ...] = (
    (_unknown_actions, ("actions",)),
    (_unknown_middleware, ("middleware",)),
    (_middleware_without_kit, ("middleware", "actions")),
    (_unused_options, ("kit_options", "actions")),
    (_unfit_actions, ("actions", "read_only")),
    (_invalid_inputs, ("inputs",)),
    (_invalid_outputs, ("outputs",)),
)


def _python_faults(
    found: Values, actions: Sequence[str], wrong: Collection[str], folder: Path | None
) -> Iterator[AgentFileError]:
    """Yield each ``module:name`` that leads to nothing, or to what must not be imported. Keys that are ``wrong`` are left out."""
    named: list[tuple[Way, str]] = []
    if "actions" not in wrong:
        named += [(("actions", number), name) for number, name in enumerate(actions)]
    named += [((part,), found.values[part]) for part in _DEFAULT_PARTS if part in found.values and part not in wrong]
    way: Way = ("memory_options", "over")
    options = {} if "memory" in wrong else found.values.get("memory_options", {})
    while isinstance(options, dict) and isinstance(options.get("over"), dict):
        options = options["over"]
        named.append(((*way, "memory"), options["memory"]))
        way = (*way, "over")
    for at, name in named:
        if is_reference(name):
            try:
                check(name, folder)
            except PythonPartError as problem:
                yield AgentFileError(str(problem), found.line(*at))


def _template_faults(file: AgentFile, goals: Iterable[Section]) -> Iterator[AgentFileError]:
    from . import templates

    for goal in goals:
        try:
            templates.check(goal.text, file.inputs)
        except templates.AgentTextError as problem:
            inputs = ", ".join(f"inputs.{name}" for name in file.inputs.get("properties", {})) or "no inputs"
            yield AgentFileError(f"{problem.what}; there are {inputs}", goal.line + problem.line - 1, in_text=True)
