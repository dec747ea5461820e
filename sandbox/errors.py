"""Error codes and the exceptions that carry them.

The tree:

    SandboxError                 a fault with a code, a sentence and a hint; ``Failure.unwrap()`` raises it
    ├── SandboxUnavailableError  the sandbox or its engine is gone; carries the post-mortem
    ├── OperationError           an expected fault inside an operation: the model can act on it
    └── ToolError                raised by the function of a tool to word its failure

``CommandError``, which ``sh(..., check=True)`` raises, is a ``subprocess.CalledProcessError`` and not part of this tree.

Codes are a closed set, snake_case, and are never reused for another meaning. An orchestrator may add an enum of its own for faults
that no sandbox has, as ``agent.errors`` does: a ``code`` is a member of any StrEnum.
"""

from __future__ import annotations

from enum import EnumType, StrEnum
from typing import TYPE_CHECKING, Any

from .moved import MOVED_CODES, moved_error_code
from .readers import hint_for


class _Codes(EnumType):
    if not TYPE_CHECKING:  # a type checker is to find unknown names itself

        def __getattr__(cls, name: str) -> StrEnum:
            return moved_error_code(name)

        def __getitem__(cls, name: str) -> StrEnum:
            return moved_error_code(name) if name in MOVED_CODES else super().__getitem__(name)

        def __call__(cls, value: str, *args: Any, **options: Any) -> StrEnum:
            moved = isinstance(value, str) and value in MOVED_CODES  # the code of an envelope, or a pickled one
            return moved_error_code(value) if moved else super().__call__(value, *args, **options)


class ErrorCode(StrEnum, metaclass=_Codes):
    """Every code of a sandbox that an envelope or a SandboxError can carry."""

    # the call itself
    invalid_arguments = "invalid_arguments"
    unknown_tool = "unknown_tool"
    unparsable_response = "unparsable_response"
    operation_not_supported = "operation_not_supported"
    approval_refused = "approval_refused"
    tool_error = "tool_error"
    invalid_result = "invalid_result"
    too_many_actions = "too_many_actions"
    # paths and files
    path_not_found = "path_not_found"
    path_outside_roots = "path_outside_roots"
    path_exists = "path_exists"
    path_invalid = "path_invalid"
    path_changed = "path_changed"
    permission_denied = "permission_denied"
    is_a_directory = "is_a_directory"
    not_a_directory = "not_a_directory"
    not_a_regular_file = "not_a_regular_file"
    directory_not_empty = "directory_not_empty"
    file_too_large = "file_too_large"
    not_text = "not_text"
    range_outside_file = "range_outside_file"
    text_not_found = "text_not_found"
    text_not_unique = "text_not_unique"
    invalid_pattern = "invalid_pattern"
    no_space = "no_space"
    unsafe_archive = "unsafe_archive"
    transfer_incomplete = "transfer_incomplete"
    io_error = "io_error"
    # checkpoints
    too_many_files = "too_many_files"
    checkpoint_not_found = "checkpoint_not_found"
    restore_incomplete = "restore_incomplete"
    store_full = "store_full"
    # commands
    timeout = "timeout"
    cancelled = "cancelled"
    session_exists = "session_exists"
    session_not_found = "session_not_found"
    user_not_allowed = "user_not_allowed"
    user_not_found = "user_not_found"
    program_not_found = "program_not_found"
    program_not_executable = "program_not_executable"
    shell_not_found = "shell_not_found"
    working_directory_invalid = "working_directory_invalid"
    arguments_too_long = "arguments_too_long"
    too_many_processes = "too_many_processes"
    too_many_commands = "too_many_commands"
    unknown_command = "unknown_command"
    command_ended = "command_ended"
    stdin_closed = "stdin_closed"
    not_a_terminal = "not_a_terminal"
    kill_failed = "kill_failed"
    cpu_limit = "cpu_limit"
    commands_running = "commands_running"
    not_ready = "not_ready"
    # browse
    invalid_url = "invalid_url"
    network_denied = "network_denied"
    connection_failed = "connection_failed"
    too_many_redirects = "too_many_redirects"
    response_too_large = "response_too_large"
    browser_not_available = "browser_not_available"
    browser_failed = "browser_failed"
    element_not_found = "element_not_found"
    element_not_usable = "element_not_usable"
    dialog_open = "dialog_open"
    script_failed = "script_failed"
    # the sandbox and its engine
    sandbox_unavailable = "sandbox_unavailable"
    sandbox_closed = "sandbox_closed"
    sandbox_paused = "sandbox_paused"
    sandbox_owned = "sandbox_owned"
    sandbox_not_found = "sandbox_not_found"
    engine_unavailable = "engine_unavailable"
    engine_permission_denied = "engine_permission_denied"
    engine_timeout = "engine_timeout"
    engine_error = "engine_error"
    image_not_found = "image_not_found"
    image_build_failed = "image_build_failed"
    start_failed = "start_failed"
    host_disk_full = "host_disk_full"
    host_descriptor_limit = "host_descriptor_limit"
    capacity = "capacity"
    setup_failed = "setup_failed"
    invalid_limits = "invalid_limits"
    invalid_configuration = "invalid_configuration"
    limit_not_enforced = "limit_not_enforced"
    workspace_invalid = "workspace_invalid"


class SandboxError(Exception):
    """A fault with the same fields as a failure envelope.

    Attributes: ``code``, ``message`` (one sentence with the offending value), ``hint`` (the next step),
    ``next_tool`` (name of the tool to call next, or None), ``retryable`` (the same call may work), ``effects``
    ("none", "partial" or "unknown") and ``result`` (what is known so far, or None).
    """

    def __init__(
        self,
        code: StrEnum,
        message: str,
        hint: str = "",
        *,
        next_tool: str | None = None,
        retryable: bool = False,
        effects: str = "none",
        result: Any = None,
    ) -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint
        self.next_tool = next_tool
        self.retryable = retryable
        self.effects = effects
        self.result = result

    def __str__(self) -> str:
        hint = hint_for("host", self.hint)
        return f"{self.message} ({self.code.value}){' ' + hint if hint else ''}"


class SandboxUnavailableError(SandboxError):
    """The sandbox cannot answer any more: killed, out of memory, removed, engine gone, pipe broken, or silent.

    ``reason`` is one of: out_of_memory, killed, exited, removed, engine_gone, pipe_broken, lease_ended, protocol_violation,
    no_answer, taken_over, closed, lifetime_over, idle, host_failed (a bug of Gamebox on the host, not in the sandbox); of a
    sandbox of a service also time_to_live, service_unreachable, service_failed.
    """

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(ErrorCode.sandbox_unavailable, message, hint, effects="unknown")
        self.reason = reason


class OperationError(SandboxError):
    """An expected fault of one operation. It becomes a failure envelope; the sandbox goes on."""


class ToolError(SandboxError):
    """Raised by the function of a tool to say how it failed and what to do next. It becomes a ``tool_error`` envelope."""

    def __init__(self, message: str, hint: str = "", retryable: bool = False, next_tool: str | None = None) -> None:
        super().__init__(ErrorCode.tool_error, message, hint, next_tool=next_tool, retryable=retryable, effects="none")


def configuration_error(message: str, hint: str) -> SandboxError:
    """Return the error for an option that a caller set wrongly. Both arguments are whole sentences."""
    return SandboxError(ErrorCode.invalid_configuration, message, hint)
