"""schemathesis over the whole API of a running service: every route, all checks, real sandboxes (``python -m tests.openapi``)."""
