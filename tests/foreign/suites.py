"""The table of foreign suites; a dialect or a family of frameworks has a file of its own with its part."""

from __future__ import annotations

from . import e2b_clients, e2b_frameworks, frameworks, mcp_clients

SUITES = (*frameworks.SUITES, *mcp_clients.SUITES, *e2b_clients.SUITES, *e2b_frameworks.SUITES)
