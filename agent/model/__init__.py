"""Brains: whatever turns a prompt into a response."""
