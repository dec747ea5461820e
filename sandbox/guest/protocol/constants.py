"""Values besides the frames on which both ends, or several programs of the guest, must agree."""

from __future__ import annotations

# The guest's proxy listens here, on the loopback of a sandbox without a network of its own.
PROXY_PORT = 24128
# The socket of the guest of a kept sandbox for relays (see ``loop.entrances``), in the abstract namespace of the sandbox's own
# network. It is bound before the first command runs, so that no command can bind it.
DOOR = "\0gamebox-door"
# Between the destination and the reason, in the proxy's answers to refused and to failed connections: a page's reader, and the
# host in a command's output, recognize them by it.
REFUSED, UNREACHED = " is refused by the sandbox: ", " was not reached: "
# Exit codes of the guest that tell the host why a sandbox ended by itself.
LIFETIME_OVER, IDLE, LEASE_OVER = 91, 92, 93
# The user, and the group, of the browser in a sandbox: no user of an image has so high a number, and none of the sandbox's is it.
BROWSER_UID = 61187
# Where Chromium is, in images that have it. Debian's package starts it by a shell script that looks for desktops; the program
# itself is beside its libraries.
BROWSER_PROGRAMS = (
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/opt/google/chrome/chrome",
)
