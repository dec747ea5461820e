"""Chromium as a process: its arguments, its folder, its start and its end."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile

from ...protocol.constants import BROWSER_PROGRAMS

PREFIX = "gamebox-browser-"
NOT_WANTED = (
    "AutofillServerCommunication,CertificateTransparencyComponentUpdater,DialMediaRouteProvider,HttpsUpgrades,IsolateOrigins,"
    "MediaRouter,OptimizationHints,Translate,site-per-process"
)
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # no profile of a sandbox lets a program make name spaces; this user and Landlock take its place
    "--remote-debugging-pipe",
    # All frames of a tab in one process: they are reached in one call, and a page costs half of the memory.
    "--disable-site-isolation-trials",
    f"--disable-features={NOT_WANTED}",
    "--deny-permission-prompts",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-crash-reporter",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-quic",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-sync",
    "--disk-cache-size=16777216",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    "--window-size=1280,943",  # with the frame of a window that nobody sees
)


# Chromium asks these for updates of its parts, whatever its switches say. Past the proxy nothing answers: the page is not blamed.
OWN_HOSTS = "update.googleapis.com;clients2.google.com"


def find_program() -> str | None:
    """Return the path of Chromium, or None if the image has none."""
    return next((path for path in BROWSER_PROGRAMS if os.access(path, os.X_OK)), None)


def make_folder(base: str) -> str:
    """Return a new folder for this user alone, and remove those that a killed browser of this user left behind."""
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if name.startswith(PREFIX) and not os.path.islink(path) and os.lstat(path).st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
    return tempfile.mkdtemp(prefix=PREFIX, dir=base)


class Chromium:
    """A running browser; ``read_fd`` and ``write_fd`` are the pipe of its DevTools."""

    def __init__(self, program: str, folder: str, proxy: str, direct: str) -> None:
        self.log = open(os.path.join(folder, "log"), "w+b", buffering=0)  # noqa: SIM115
        arguments = [program, *ARGUMENTS, f"--user-data-dir={folder}/profile"]
        if proxy:
            arguments += [f"--proxy-server={proxy}", f"--proxy-bypass-list={direct};{OWN_HOSTS}"]
        else:
            arguments.append("--no-proxy-server")
        theirs_in, self.write_fd = os.pipe()
        self.read_fd, theirs_out = os.pipe()
        # Chromium expects the pipe as descriptors 3 and 4; every other one of this program is closed in it.
        high_in, high_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in (theirs_in, theirs_out))
        null = os.open(os.devnull, os.O_RDWR)
        moves = ((null, 0), (self.log.fileno(), 1), (self.log.fileno(), 2), (high_in, 3), (high_out, 4))
        environ = {
            "HOME": folder,
            "TMPDIR": folder,
            "XDG_CONFIG_HOME": f"{folder}/config",
            "XDG_CACHE_HOME": f"{folder}/cache",
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "DBUS_SESSION_BUS_ADDRESS": "disabled:",
        }
        self.pid = os.posix_spawn(
            program,
            [*arguments, "about:blank"],
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, *move) for move in moves],
            setsid=True,
        )
        for fd in (theirs_in, theirs_out, high_in, high_out, null):
            os.close(fd)

    def log_tail(self) -> str:
        """Return the last line that the browser wrote, for a fault."""
        try:
            size = self.log.seek(0, os.SEEK_END)
            self.log.seek(max(0, size - 4000))
            lines = self.log.read().decode("utf-8", "replace").split("\n")
        except (OSError, ValueError):
            return ""
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "")

    def end(self) -> None:
        """Kill the browser with all its processes."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except OSError:  # it has ended
            pass
