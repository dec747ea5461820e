"""Services that a sandbox reaches by name: upstreams with credentials, other sandboxes, side services."""
