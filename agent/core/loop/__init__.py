"""The loop, and what carries it out: drivers, the stream of events, tool calls, layers and hooks."""
