"""A Docker Engine: find it, call it, follow its events, take turns with other processes."""
