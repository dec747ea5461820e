"""MCP over streamable HTTP: the tools of ``sandbox.mcp`` in sandboxes of the tenant whose key the client sends."""
