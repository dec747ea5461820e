"""Admit work to the engine: quotas are reserved, tenants take turns, threads are bounded, and sandboxes are started ahead."""
