"""The network of a sandbox: its policy, the connections that the host judges, dials and relays, and forwarded ports."""

from .policy import Network

__all__ = ["Network"]
