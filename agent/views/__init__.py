"""How people and programs see a run: on a terminal, as a page, as an export."""
