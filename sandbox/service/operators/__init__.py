"""What the operator of a service needs: logs, audit, metrics, traces, backups, and what a version change or a full disk does."""
