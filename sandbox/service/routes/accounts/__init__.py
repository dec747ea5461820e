"""Routes about tenants: their keys, quotas and secrets, and the audit of what they did."""
