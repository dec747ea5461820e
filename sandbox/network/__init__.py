"""What a sandbox may reach."""

from .policy import Network

__all__ = ["Network"]
