"""The routes of the HTTP API, one file for each kind of thing."""
