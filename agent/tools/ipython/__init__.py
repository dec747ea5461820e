"""The kit ``ipython``: a Python kernel inside the sandbox whose variables stay from cell to cell."""

from .kit import IPythonKit

__all__ = ["IPythonKit"]
