"""Diffs in git's form, made without git."""
