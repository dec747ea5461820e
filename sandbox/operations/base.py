"""What all operations share: a request, what it becomes on its way to the guest, and what the answer becomes on its way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sandbox.argument_types import number_as_text
from sandbox.errors import ErrorCode, OperationError
from sandbox.frozen import dataclass
from sandbox.guest.protocol.wire import MAX_REPLY
from sandbox.limits import SILENCE_SECONDS, Limits
from sandbox.messages.faults import fault_error, violation
from sandbox.text.masking import Mask, map_texts

from .result import Result

if TYPE_CHECKING:
    from sandbox.text.screen import Screens  # pyte takes 60 ms to load

Reply = tuple[dict[str, Any], bytes]



@dataclass(frozen=True, slots=True)
class PythonType:
    """The type of an argument in the methods of an environment, where it is not that of the request's field."""

    source: str


Path = Annotated[str, Field(min_length=1, max_length=4096, description="Path, relative to the workspace or absolute.")]
Id = Annotated[str, Field(min_length=1, max_length=64, description="Id of the command.")]
User = Annotated[
    Annotated[str, Field(min_length=1, max_length=256)] | None,
    BeforeValidator(number_as_text),
    PythonType("str | int | None"),
    Field(
        description="User to run as, by name or number, instead of the sandbox's own.",
        json_schema_extra={"host_only": True},
    ),
]


class Prepared(NamedTuple):
    """A request as it goes to the guest: its arguments, and how ``Transport.request`` sends them and waits.

    The guest may be silent for ``timeout_seconds``, and its reply may have ``max_reply_bytes``. ``stdin``, or the ``content`` of a
    file, goes along with the request; ``source`` (a file or an iterable of bytes) is streamed to the command as it reads.
    ``watch`` gets the output.

    Of an operation that starts a command: ``secret_names`` are the secrets that it asks for, and ``waits_for_command`` says
    whether the answer comes when the command has ended.
    """

    args: dict[str, Any]
    timeout_seconds: float = SILENCE_SECONDS
    max_reply_bytes: int = MAX_REPLY
    request_id: str | None = None
    stdin: bytes = b""
    content: bytes = b""
    source: Any = None
    watch: Any = None
    secret_names: Sequence[str] | None = None
    waits_for_command: bool = False

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for ``Transport.request``."""
        options: dict[str, Any] = {"timeout_seconds": self.timeout_seconds, "max_reply_bytes": self.max_reply_bytes}
        if self.request_id is not None:
            options["request_id"] = self.request_id
        if self.stdin:
            options.update(blob=self.stdin, blob_for="stdin")
        if self.content:
            options.update(blob=self.content, blob_for="content")
        if self.source is not None:
            options["feed"] = self.source
        if self.watch is not None:
            options["watch"] = self.watch
        return options


class Answer(NamedTuple):
    """A reply of the guest, read: its fields as they came, the result in them, and the notices that follow from the result.

    The result is None if the reply has none. The notices have no wording yet.
    """

    fields: Mapping[str, Any]
    result: Any
    notices: Sequence[Mapping[str, Any]]


class Host(Protocol):
    """What the environment offers to the operation that it carries out."""

    def ask(self, operation: str, prepared: Prepared) -> Reply:
        """Send a request to the guest and return the fields and bytes of its reply. Raises SandboxError."""

    @property
    def screens(self) -> Screens:
        """The screens of the commands that have a terminal."""

    def network_usage(self) -> Mapping[str, Any]:
        """Return what this host has counted of the sandbox's network, as fields of ``UsageResult``."""


class Request(BaseModel):
    """Base of all requests: frozen; unknown arguments are refused, and numbers that JSON does not have.

    The facts below are set where an operation is declared, see ``table.operation``; they say how it is treated everywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)
    operation: ClassVar[str]
    result: ClassVar[type[Result]]
    # It may change files of the sandbox.
    changes_files: ClassVar[bool]
    # It starts a command, which gets the sandbox's variables and secrets and can be watched.
    starts_process: ClassVar[bool]
    # Carrying it out once more does no harm: it changes nothing, or makes the same of it.
    repeatable: ClassVar[bool]
    # Its place among the calls of a reply matters though it is repeatable: it waits for something, or changes what others show.
    ordered: ClassVar[bool]
    # It does nothing but wait, for as long as it was asked to: a CancelToken ends it.
    waits: ClassVar[bool]
    # Models are offered it as a tool; the others are for the host's own program.
    for_models: ClassVar[bool]
    # Every sandbox can carry it out. Models are offered the others only where they are asked for by name.
    in_every_sandbox: ClassVar[bool]
    # How its method takes these arguments: by position. The others are given by name.
    positional: ClassVar[tuple[str, ...]]
    # The arguments whose default is None.
    none_by_default: ClassVar[frozenset[str]]
    # What the method's documentation says beside the docstring, which is for models.
    method_notes: ClassVar[str]

    @classmethod
    def host_only(cls) -> frozenset[str]:
        """Return the names of the arguments that only the host's program may give, never a model."""
        extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return frozenset(n for n, extra in extras.items() if isinstance(extra, dict) and extra.get("host_only"))

    def problem(self) -> str | None:
        """Return why the arguments do not fit each other, or None if they do."""
        return None

    def prepare(self, limits: Limits) -> Prepared:
        """Return the request as it goes to the guest. Raises OperationError for what ``limits`` do not allow."""
        self.check()
        return Prepared(
            self.guest_arguments(),
            timeout_seconds=self.silence_seconds(),
            max_reply_bytes=MAX_REPLY + limits.read_bytes,
        )

    def check(self) -> None:
        """Raise OperationError ``invalid_arguments`` for arguments that do not fit each other."""
        if (problem := self.problem()) is not None:
            raise fault_error(ErrorCode.invalid_arguments, {"problem": problem}, self.operation)

    def guest_arguments(self) -> dict[str, Any]:
        """Return the arguments as the guest takes them."""
        return self.model_dump(mode="json", exclude={"request_id"})

    def silence_seconds(self) -> float:
        """Return how long the guest may be silent before it is taken for lost."""
        return SILENCE_SECONDS

    def reading_from(self, prepared: Prepared, source: Any) -> Prepared:  # noqa: ARG002
        """Have the command read ``source`` if there is one. Raises OperationError if it cannot be streamed to it."""
        return prepared

    def answer(self, prepared: Prepared, host: Host) -> Answer:
        """Carry the request out and read the reply. Raises SandboxError."""
        return self.read_reply(self.carry_out(prepared, host), host)

    def read_reply(self, reply: Reply, host: Host) -> Answer:
        """Read a reply. Raises SandboxUnavailableError ``protocol_violation`` for what no guest of ours would send."""
        fields, blob = reply
        if (known := fields.get("result")) is None:
            return Answer(fields, None, ())
        try:
            result = self.result.model_validate(self.result_fields(dict(known), blob, fields))
        except (TypeError, ValueError, KeyError, OverflowError) as error:  # ValidationError is a ValueError
            raise violation(self.operation) from error
        return Answer(fields, self.completed(result, host), ())

    def carry_out(self, prepared: Prepared, host: Host) -> Reply:
        """Return the reply to the request: usually the guest's. Raises SandboxError."""
        return host.ask(self.operation, prepared)

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return the fields of the result from those that the guest sent; ``reply`` is all of its message, ``blob`` its bytes.

        None of it has been checked: raise TypeError, ValueError or KeyError for what cannot be used.
        """
        return fields

    def completed(self, result: Any, host: Host) -> Any:  # noqa: ARG002
        """Return the result with what only the host knows."""
        return result


class HostArguments(dict[str, Any]):
    """Arguments for ``execute`` that the host's own program gives, not a model: only these may have host-only ones."""


class Change(Request):
    """Base of requests that may be made again after a broken connection without being carried out twice."""

    request_id: str | None = Field(None, min_length=1, max_length=64)

    def prepare(self, limits: Limits) -> Prepared:
        return super().prepare(limits)._replace(request_id=self.request_id)


class Transfer(Request):
    """Base of requests that move bytes between host and sandbox: only methods of an environment carry them out."""

    def prepare(self, limits: Limits) -> Prepared:  # noqa: ARG002
        """Raise OperationError: the bytes are no part of the request."""
        raise OperationError(
            ErrorCode.operation_not_supported,
            f"{self.operation} moves bytes between host and sandbox and is not a tool.",
            f"Call env.{self.operation}(...) from the host's own code.",
        )


class Excerpt(Result):
    """Base of results whose texts were cut out of longer ones: a secret may lie across their borders."""

    def masked(self, mask: Mask) -> Self:
        masked: Self = map_texts(self, mask.part, mask.whole)
        return masked
