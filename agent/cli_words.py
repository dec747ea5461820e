"""Words of options that several commands of agents have."""

AGENTS_HELP = "Folder of additional agents, which take precedence over all others; may be repeated."
LANGUAGE_HELP = "Language to use instead of the agent's own: function_calling, json, tags or fenced."
MCP_HELP = (
    "MCP server whose tools the agent gets: a command, which runs in the sandbox, or an http or https address, which this host "
    "connects to; may be repeated."
)
MCP_HEADER_HELP = (
    "Header for requests to an MCP server, as in tracker:Authorization=TRACKER_TOKEN; the value is read from the variable. "
    "May be repeated."
)
