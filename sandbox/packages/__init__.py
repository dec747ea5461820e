"""A read-through cache of package indexes: a service of the host from which sandboxes install, with no network of their own."""
