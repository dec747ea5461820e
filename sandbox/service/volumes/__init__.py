"""Volumes of tenants, and the sandboxes through which their content is read and written."""
