"""Bytes from guests: one thread that reads the pipes of all sandboxes, and the frames in what it reads."""
