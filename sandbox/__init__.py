"""The environment of Gamebox: sandboxes that answer every action with one envelope. Names load when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .moved import MOVED, keep_old_paths

if TYPE_CHECKING:
    from sandbox.docker.environment import DockerEnvironment
    from sandbox.docker.local_images.image import Image
    from sandbox.docker.local_images.setups import set_up
    from sandbox.environment.base import Environment
    from sandbox.environment.command_error import CommandError
    from sandbox.network.connections import ConnectionFile
    from sandbox.network.policy import Network
    from sandbox.network.services.service import Service
    from sandbox.network.services.side_service import Ready, SideService
    from sandbox.packages.cache import PackageCache
    from sandbox.pipe.watching import CancelToken

    from .aio import AsyncEnvironment
    from .client.aio import AsyncRemoteEnvironment
    from .client.environment import RemoteEnvironment
    from .envelope import Envelope, Failure, Notice, Success
    from .errors import ErrorCode, OperationError, SandboxError, SandboxUnavailableError, ToolError
    from .limits import Limits
    from .local import LocalEnvironment
    from .pool import AsyncSandboxPool, SandboxPool
    from .standby import PoolStats
    from .testing import FakeEnvironment

_HOMES = {
    "AsyncEnvironment": ".aio",
    "AsyncRemoteEnvironment": ".client.aio",
    "AsyncSandboxPool": ".pool",
    "CancelToken": ".pipe.watching",
    "CommandError": ".environment.command_error",
    "ConnectionFile": ".network.connections",
    "DockerEnvironment": ".docker.environment",
    "Envelope": ".envelope",
    "Failure": ".envelope",
    "Notice": ".envelope",
    "Success": ".envelope",
    "Environment": ".environment.base",
    "Image": ".docker.local_images.image",
    "ErrorCode": ".errors",
    "OperationError": ".errors",
    "SandboxError": ".errors",
    "SandboxUnavailableError": ".errors",
    "ToolError": ".errors",
    "Limits": ".limits",
    "LocalEnvironment": ".local",
    "Network": ".network.policy",
    "Ready": ".network.services.side_service",
    "Service": ".network.services.service",
    "SideService": ".network.services.side_service",
    "PackageCache": ".packages.cache",
    "set_up": ".docker.local_images.setups",
    "PoolStats": ".standby",
    "RemoteEnvironment": ".client.environment",
    "SandboxPool": ".pool",
    "FakeEnvironment": ".testing",
}

__all__ = [
    "AsyncEnvironment",
    "AsyncRemoteEnvironment",
    "AsyncSandboxPool",
    "CancelToken",
    "CommandError",
    "ConnectionFile",
    "DockerEnvironment",
    "Envelope",
    "Environment",
    "ErrorCode",
    "Failure",
    "FakeEnvironment",
    "Image",
    "Limits",
    "LocalEnvironment",
    "Network",
    "Notice",
    "OperationError",
    "PackageCache",
    "PoolStats",
    "Ready",
    "RemoteEnvironment",
    "SandboxError",
    "SandboxPool",
    "SandboxUnavailableError",
    "Service",
    "SideService",
    "Success",
    "ToolError",
    "set_up",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sandbox' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


keep_old_paths(MOVED)
