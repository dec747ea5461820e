"""The wire of SWE-ReX: what its RemoteRuntime asks of a server, over one sandbox of the service."""
