"""Suites and programs of others, run unchanged against Gamebox: ``python -m tests.foreign``, or ``make foreign``."""
