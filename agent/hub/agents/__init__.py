"""The built-in agents: Markdown files, and modules for those whose brain is Python."""
