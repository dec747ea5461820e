"""Network policy of a sandbox: pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Network:
    """What network a sandbox has. Use the constructors ``Network.none()`` and ``Network.bridge()``."""

    mode: Literal["none", "bridge"]

    @classmethod
    def none(cls) -> Network:
        """No interface but loopback; every other address is unreachable and names do not resolve."""
        return cls("none")

    @classmethod
    def bridge(cls) -> Network:
        """The engine's default bridge: the world, the host's services and other bridged containers are reachable."""
        return cls("bridge")

    def describe(self) -> str:
        """One sentence for the model."""
        if self.mode == "none":
            return "No network: only servers inside this sandbox (127.0.0.1) can be reached; downloads and DNS fail."
        return "Network through the engine's bridge: the internet and services of the host network can be reached."
