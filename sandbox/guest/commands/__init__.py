"""Commands: start them (``launch``), carry their input and output, limit and stop them, and explain how they ended."""
