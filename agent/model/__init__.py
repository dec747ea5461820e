"""Brains: everything that turns a prompt into a reply."""
