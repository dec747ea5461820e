"""Bodies of requests as they come in: bounded in memory and in time, and JSON that no two readers read differently."""
