"""Tools that ship with the product: the operations of the sandbox, think, and finish."""

from .finish import finish_action, think_action
from .sandbox_tools import SandboxAction, sandbox_tools, standard_registry

__all__ = ["SandboxAction", "finish_action", "sandbox_tools", "standard_registry", "think_action"]
