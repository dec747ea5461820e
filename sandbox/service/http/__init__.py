"""What crosses the wire around an operation: bodies, problems, events, request ids."""
