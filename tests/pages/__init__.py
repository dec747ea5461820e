"""Pages of docs/ that are written by a program: the API, the OpenAPI document, and the walk of a call through the rooms."""
