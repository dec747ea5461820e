"""Dialects of others: the wires that their clients speak, each over the same sandboxes, tenants and keys."""
