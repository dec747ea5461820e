"""Tenants: who they are, what the operator lets them ask for, and how much of it they have."""
