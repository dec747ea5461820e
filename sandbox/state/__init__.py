"""The state of a sandbox's files: changes, checkpoints, rollback, patches, forks.

The host keeps all of it, out of reach of the sandbox's commands.
"""
