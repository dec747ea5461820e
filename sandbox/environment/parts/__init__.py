"""What a SandboxedEnvironment is made of: operations and transfers over its guest, network, side services, secrets, pause."""
