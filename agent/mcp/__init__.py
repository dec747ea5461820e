"""Use the tools of MCP servers.

The official SDK (extra ``mcp``) provides the session, the types, the choice of a protocol version and OAuth. Gamebox provides the
way to a server (a command in the sandbox, or an address that the user named) and the bounds on everything a server sends. Modules
that import the SDK are imported only when a server is used: it takes a second of processor time.
"""
