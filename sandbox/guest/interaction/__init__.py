"""Interact with running commands: type into them, read their output, wait for what they do, list their processes."""
