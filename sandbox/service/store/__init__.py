"""What the service remembers, in one SQLite file that survives a kill: tenants, keys, sandboxes, requests, events."""
