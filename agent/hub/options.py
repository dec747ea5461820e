"""The options that parts take in an agent file, as models: an option is checked before any part is imported, created or started.

Tests hold each model to its part: it has the same options, and accepts the same values.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

Way = tuple[str | int, ...]
# A part of the user's own, as ``module:name``.
_PYTHON_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_python_name(name: object) -> bool:
    """Return whether ``name`` has the form ``module:name``."""
    return isinstance(name, str) and _PYTHON_NAME.fullmatch(name) is not None


def fault(message: str, *way: str | int) -> PydanticCustomError:
    """Return an error for the value at ``way`` below the one being validated; ``message`` is what a person reads."""
    return PydanticCustomError("fault", "{message}", {"message": message, "way": way})


def suggestion(name: str, known: list[str]) -> str:
    """Return "did you mean ...?" if one of ``known`` is similar to ``name``, and otherwise a list of them."""
    near = difflib.get_close_matches(name[:100], known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"


class Options(BaseModel):
    """The options of one part. Values are not converted: 9.0 and true are not integers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    # The field that says which part this is. It is not an option itself.
    discriminator: ClassVar[str] = ""

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options."""
        return sorted(set(cls.model_fields) - {cls.discriminator})

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_option(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                if known := cls.names():
                    raise fault(f"there is no such option: {suggestion(key, known)}", key)
                part = f"the {cls.discriminator} {data[cls.discriminator]!r} " if cls.discriminator else ""
                raise fault(f"{part}takes no options, not {key!r:.80}")
        return data


Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Texts = dict[str, str | int | float | bool]
Name = Annotated[str, Field(min_length=1)]


def _times(value: Any) -> Any:
    if type(value) is int and (value < 0 or value == 1):
        raise fault(f"must be 0 (off) or at least 2, not {value}")
    return value


Times = Annotated[int, BeforeValidator(_times)]


class StuckOptions(Options):
    """Thresholds of ``agent.layers.stuck``."""

    same_answer: Times = 0
    same_error: Times = 0
    monologue: Times = 0
    alternating: Times = 0
    patience: Count = 1
    nudges: Size = 0
    talking: list[Name] = []


def _matching(pattern: str, rule: str) -> BeforeValidator:
    """Return a validator for texts; ``rule`` completes "must be"."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and re.search(pattern, value) is None:
            raise fault(f"must be {rule}, not {value!r:.80}")
        return value

    return BeforeValidator(check)


TagName = Annotated[str, _matching(r"\A[A-Za-z_][\w-]*\Z", "the name of a tag")]
ServerName = Annotated[
    str, _matching(r"\A[a-z][a-z0-9-]{0,23}\Z", "the name of a server (up to 24 lower-case letters, digits and -)")
]


class LanguageOptions(Options):
    """A language that takes none."""

    discriminator: ClassVar[str] = "language"
    language: str


class TagsOptions(LanguageOptions):
    """Which tag stands for which action."""

    tags: dict[TagName, str] = {}


class PythonPart(BaseModel):
    """A language or memory of the user's own: its options are for its constructor to check."""

    model_config = ConfigDict(extra="allow", frozen=True)


class MemoryOptions(Options):
    """Options of a memory; ``memory`` is its name."""

    discriminator: ClassVar[str] = "memory"
    memory: str


class WindowOptions(MemoryOptions):
    """``agent.memory.WindowMemory``."""

    limit: Count = 200
    keep_first: Size = 1
    step: Count = 1
    limit_tokens: Annotated[int, Field(ge=2000)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nothing_below(cls, data: Any) -> Any:
        if isinstance(data, dict) and "over" in data:
            raise fault("the memory 'window' cannot be put over another", "over")
        return data

    @model_validator(mode="after")
    def _step_fits(self) -> WindowOptions:
        if self.step > self.limit:
            raise fault(f"step must be at most limit ({self.limit}), not {self.step}")
        return self


class CondensingOptions(MemoryOptions):
    """``agent.memory.CondensingMemory``."""

    over: Memory | None = None
    threshold_tokens: Annotated[int, Field(ge=500)] = 500
    threshold_messages: Annotated[int, Field(ge=4)] | None = None
    keep_first: Size = 0
    keep_last: Size = 0
    keep_share: Share = 0.5
    min_shrink: Annotated[float, Field(ge=0, lt=1)] = 0
    prompt_tokens: Count | None = None


class RecallOptions(MemoryOptions):
    """``agent.memory.RecallMemory``; ``embed`` can be set in Python alone."""

    over: Memory | None = None
    path: Name | None = None
    run: str = ""


def _tag(key: str, without_options: frozenset[str] = frozenset()) -> Discriminator:
    """Return what chooses the model of a part by its name, which stands at ``key``."""

    def choose(value: Any) -> str | None:
        name = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        if not isinstance(name, str):
            return None
        return "python" if is_python_name(name) else "plain" if name in without_options else name

    return Discriminator(choose)


Memory = Annotated[
    Annotated[WindowOptions, Tag("window")]
    | Annotated[CondensingOptions, Tag("condensing")]
    | Annotated[RecallOptions, Tag("recall")]
    | Annotated[PythonPart, Tag("python")],
    _tag("memory"),
]
Language = Annotated[
    Annotated[LanguageOptions, Tag("plain")]
    | Annotated[TagsOptions, Tag("tags")]
    | Annotated[PythonPart, Tag("python")],
    _tag("language", frozenset({"function_calling", "json", "structured", "fenced"})),
]
CondensingOptions.model_rebuild()
RecallOptions.model_rebuild()


class NoOptions(Options):
    """For kits that take none."""


class AskUserOptions(Options):
    """``agent.tools.ask_user.AskUserKit``."""

    absent: Literal["refuse", "reply", "pause"] = "refuse"
    reply: str = ""


class DelegateOptions(Options):
    """``agent.tools.delegate.DelegateKit``."""

    agents: list[Name] = []
    max_depth: Count = 1


class EditorOptions(Options):
    """``agent.tools.editor.EditorKit``."""

    window: Count = 100
    overlap: Size = 2

    @model_validator(mode="after")
    def _overlap_fits(self) -> EditorOptions:
        if self.overlap >= self.window:
            raise fault(f"a window of {self.window} lines cannot overlap by {self.overlap}")
        return self


class ServerOptions(Options):
    """One MCP server: a command that runs in the sandbox, or an address that the host connects to."""

    command: Annotated[str, _matching(r"\S", "a shell command")] = ""
    cwd: str = "."
    env: Texts = {}
    url: Annotated[str, _matching(r"\Ahttps?://", "an address, http(s)://...")] = ""
    headers: Texts = {}
    tools: list[Name] = []
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 60
    optional: bool = False

    @model_validator(mode="after")
    def _command_or_url(self) -> ServerOptions:
        if bool(self.command) == bool(self.url):
            raise fault("needs either command or url")
        return self


class McpOptions(Options):
    """``agent.tools.mcp.McpKit``."""

    servers: Annotated[dict[ServerName, ServerOptions], Field(min_length=1, max_length=20)]


class KitOptions(BaseModel):
    """The options of each kit, by its name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    ask_user: AskUserOptions = AskUserOptions()
    delegate: DelegateOptions = DelegateOptions()
    editor: EditorOptions = EditorOptions()
    ipython: NoOptions = NoOptions()
    mcp: McpOptions | None = None
    message: NoOptions = NoOptions()
    mini: NoOptions = NoOptions()
    monologue: NoOptions = NoOptions()
    plan: NoOptions = NoOptions()
    recall: NoOptions = NoOptions()
    reject: NoOptions = NoOptions()
