"""The sandboxes of a service: made, found again, used and removed."""
