"""Tools that ship with the product: the operations of the sandbox, think, and finish."""

from .registries import standard_registry
from .sandbox_tools import SandboxAction, sandbox_tools
from .thinking import finish_action, think_action

__all__ = ["SandboxAction", "finish_action", "sandbox_tools", "standard_registry", "think_action"]
