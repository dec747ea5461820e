"""Adapters with which frameworks of others run in sandboxes: one file and one extra each. Nothing of Gamebox imports them."""
