"""Try out every promise of a sandbox on an engine."""
