"""Commands as clients of E2B know them: by their process ids in the sandbox, also after a restart of the service."""
