"""Test every promise of a sandbox on an engine."""
