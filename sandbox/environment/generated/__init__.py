"""The typed methods of environments, and what writes them from the table of operations."""
