"""The guest as a child process of the host. NO isolation: commands run as you, on your files."""

from .environment import LocalBackend, LocalEnvironment, ProcessStream

__all__ = ["LocalBackend", "LocalEnvironment", "ProcessStream"]
