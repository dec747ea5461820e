"""The agents of the product: Markdown files, and modules where the brain is Python."""
