"""The MCP server: operations of a sandbox as tools, files as resources; for ``gamebox mcp``, and ``/mcp`` of the service."""
