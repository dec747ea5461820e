"""The environment of Gamebox: sandboxes that answer every action with one envelope. Names load when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aio import AsyncEnvironment
    from .command_error import CommandError
    from .docker.environment import DockerEnvironment
    from .envelope import Envelope, Failure, Notice, Success
    from .environment import Environment
    from .errors import ErrorCode, OperationError, SandboxError, SandboxUnavailableError, ToolError
    from .limits import Limits
    from .local import LocalEnvironment
    from .network.connection_file import ConnectionFile
    from .network.policy import Network
    from .network.services import Service
    from .network.side_services import Ready, SideService
    from .packages.cache import PackageCache
    from .testing import FakeEnvironment
    from .watching import CancelToken

_HOMES = {
    "AsyncEnvironment": ".aio",
    "CancelToken": ".watching",
    "CommandError": ".command_error",
    "ConnectionFile": ".network.connection_file",
    "DockerEnvironment": ".docker.environment",
    "Envelope": ".envelope",
    "Failure": ".envelope",
    "Notice": ".envelope",
    "Success": ".envelope",
    "Environment": ".environment",
    "ErrorCode": ".errors",
    "OperationError": ".errors",
    "SandboxError": ".errors",
    "SandboxUnavailableError": ".errors",
    "ToolError": ".errors",
    "Limits": ".limits",
    "LocalEnvironment": ".local",
    "Network": ".network.policy",
    "Ready": ".network.side_services",
    "Service": ".network.services",
    "SideService": ".network.side_services",
    "PackageCache": ".packages.cache",
    "FakeEnvironment": ".testing",
}

__all__ = [
    "AsyncEnvironment",
    "CancelToken",
    "CommandError",
    "ConnectionFile",
    "DockerEnvironment",
    "Envelope",
    "Environment",
    "ErrorCode",
    "Failure",
    "FakeEnvironment",
    "Limits",
    "LocalEnvironment",
    "Network",
    "Notice",
    "OperationError",
    "PackageCache",
    "Ready",
    "SandboxError",
    "SandboxUnavailableError",
    "Service",
    "SideService",
    "Success",
    "ToolError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sandbox' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
