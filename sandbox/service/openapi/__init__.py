"""The API as an OpenAPI 3.1 document, made from the routes, the operations, and what is said here of their bodies and answers."""
