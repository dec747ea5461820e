"""What is done to a sandbox under soak, and how often one thing beside the other."""

from __future__ import annotations

from collections.abc import Callable

from . import commands, files, hogs, looks, state, waits
from .subject import Subject

Action = Callable[[Subject], None]

ACTIONS: dict[Action, int] = {
    files.write: 10, files.read: 14, files.edit: 4, files.listing: 3, files.search: 3, files.move: 3, files.delete: 3,
    files.refused: 2, files.sees_files: 6, files.transfer: 6, files.transfer_tree: 2,
    commands.exit_codes: 12, commands.session: 4, commands.timeout: 3, commands.background: 5, commands.background_ends: 3,
    commands.kill: 4, commands.typed_into: 3, commands.terminal: 2, commands.much_output: 3, commands.watched: 2,
    commands.cancelled: 2, commands.once_only: 3, commands.census: 3,
    waits.for_a_line: 3, waits.for_a_file: 2, waits.for_an_end: 2, waits.for_a_port: 1, waits.in_vain: 2, waits.given_up: 2,
    waits.followed: 3, waits.followed_no_more: 2, waits.logs_followed: 2,
    looks.processes: 3, looks.usage: 3, looks.browsed: 1,
    state.changes: 3, state.checkpoint: 3, state.rollback: 2, state.fork: 1, state.patch: 2, state.every_file: 3,
    hogs.memory_hog: 1, hogs.fork_storm: 1, hogs.disk_filler: 1,
}  # fmt: skip
