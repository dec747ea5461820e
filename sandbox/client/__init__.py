"""Sandboxes of a service, used like those on this host. Needs only httpx and pydantic."""
