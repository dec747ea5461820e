"""Templates: images that tenants have had built, their builds, and what was uploaded for those."""
