"""The environment on a Docker Engine; the only package that speaks docker-py (slow to import: import its modules where needed)."""
