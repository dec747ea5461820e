"""Policies of a run: approvals, read-only, finish checks, stuck notices, the budget line, messages and delegation."""
