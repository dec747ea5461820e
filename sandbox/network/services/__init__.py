"""Services of the host, of other sandboxes and beside a sandbox, each behind a name of its own."""
