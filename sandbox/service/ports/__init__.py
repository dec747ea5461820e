"""Ports of sandboxes on names of their own: who may reach them, and the bytes between a client and a server in a sandbox."""
