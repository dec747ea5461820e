"""The environment on a Docker Engine; the only package that speaks docker-py.

It takes 0.2 s to import: import its modules where they are needed.
"""
