"""A Docker Engine: find it, speak to it, follow its events, install it."""
