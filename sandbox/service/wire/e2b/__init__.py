"""What clients of E2B speak: its REST API, and the API of envd, the server in each of its sandboxes, which is answered here."""
