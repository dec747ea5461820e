"""The event log of runs: recording, resuming and reading them."""
