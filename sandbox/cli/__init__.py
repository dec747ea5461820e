"""The commands of ``gamebox`` that work on sandboxes."""
