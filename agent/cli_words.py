"""Words of options that several commands of agents have."""

AGENTS_HELP = "Folder with further agents, which count before all others; may be repeated."
LANGUAGE_HELP = "function_calling, json, tags or fenced: in place of the agent's own."
MCP_HELP = (
    "An MCP server whose tools the agent gets: a command, which runs in the sandbox, or an address (http, https), which is reached "
    "from this host; may be repeated."
)
MCP_HEADER_HELP = (
    "A header for the address of that server, as in tracker:Authorization=TRACKER_TOKEN; its value is taken from the variable. "
    "May be repeated."
)
