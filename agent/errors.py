"""Error codes that only the orchestrator gives: of models, layers, tools of its own, runs and their log.

An envelope's ``code`` is a member of ``AgentErrorCode`` or of ``sandbox.errors.ErrorCode``; no value is in both. Like those, these
codes are snake_case and are never reused for another meaning.
"""

from __future__ import annotations

from enum import StrEnum

from sandbox.errors import ErrorCode


class AgentErrorCode(StrEnum):
    """Every code that an envelope or a SandboxError can carry in addition to those of the sandbox."""

    # models
    model_unavailable = "model_unavailable"
    model_credentials_missing = "model_credentials_missing"
    model_rejected_request = "model_rejected_request"
    context_window_exceeded = "context_window_exceeded"
    real_calls_forbidden = "real_calls_forbidden"
    # layers and tools
    apply_refused = "apply_refused"
    delegation_refused = "delegation_refused"
    delegate_not_finished = "delegate_not_finished"
    read_only = "read_only"
    tasks_open = "tasks_open"
    lint_errors = "lint_errors"
    no_open_file = "no_open_file"
    kernel_died = "kernel_died"
    finish_refused = "finish_refused"
    approval_pending = "approval_pending"
    # runs and their log
    log_unusable = "log_unusable"
    run_not_found = "run_not_found"
    run_in_use = "run_in_use"
    run_not_resumable = "run_not_resumable"
    effects_unknown = "effects_unknown"


def error_code(value: str) -> ErrorCode | AgentErrorCode:
    """Return the code that ``value`` names, of the sandbox or of the agent. Raises ValueError for an unknown one."""
    try:
        return AgentErrorCode(value)
    except ValueError:
        return ErrorCode(value)
