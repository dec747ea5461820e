"""A read-through cache of package indexes, from which sandboxes install without a network of their own."""
