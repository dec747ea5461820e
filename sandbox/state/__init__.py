"""The state of a sandbox's files: what changed, checkpoints that can be gone back to, patches.

All of it is kept by the host, where no command of the sandbox reaches.
"""
