"""The kit ``editor``: a window on one file at a time, edits by line number that are checked before they are made, and searches."""

from .kit import EditorKit

__all__ = ["EditorKit"]
