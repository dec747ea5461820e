"""Side services: sandboxes beside a sandbox, each with one server."""
