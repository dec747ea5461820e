"""Requests to sandboxes: those under way, their output, and what is answered to those that are sent again."""
