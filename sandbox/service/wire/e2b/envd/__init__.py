"""envd, the server in each sandbox of E2B: the service answers its API. Processes, files, and who may reach them."""
