"""Runs as the process of a Python kernel: ipykernel, with what clients of E2B expect of results beside it."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any

from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.display import display
from jupyter_client.session import Session
from traitlets import DottedObjectName, ObjectName, Type, Unicode

# Of a table that is sent as data beside its text; a larger one would fill the memory twice for nobody.
MOST_CELLS = 1_000_000


# Of what one cell puts out: above what a client gets (see outputs.py). The rest would fill this process and the server in vain.
MOST_BYTES = 64 << 20
_READ_BYTES = 64 << 10


class BoundedSession(Session):
    """Sends no more of a cell's output than MOST_BYTES; counts what is left out."""

    room, left_out = MOST_BYTES, 0

    def begin(self) -> None:
        """Begin with the output of another cell."""
        self.room, self.left_out = MOST_BYTES, 0

    def fit(self, text: str) -> str:
        """Return as much of a text as may still be sent."""
        size, fits = _size(text), text
        if size > self.room:
            fits = text[: self.room // 4]  # a character has four bytes at most
            self.left_out += size - _size(fits)
        self.room = max(0, self.room - size)
        return fits

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, *others: Any, **options: Any) -> Any:
        """See the base class."""
        named = isinstance(msg_or_type, str)
        if (msg_or_type if named else msg_or_type["msg_type"]) in ("display_data", "update_display_data", "execute_result"):
            size = sum(map(_size, (content if named else msg_or_type["content"])["data"].values()))
            if size > self.room:
                self.left_out += size
                return None
            self.room -= size
        return super().send(stream, msg_or_type, content, *others, **options)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    return len(value) if isinstance(value, bytes) else len(repr(value))


class Stream(OutStream):
    """What is printed, by programs too that write to the descriptor: all that is there when a cell ends is the cell's."""

    def _setup_stream_redirects(self, name: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._reading = threading.Lock()
        super()._setup_stream_redirects(name)

    def write(self, string: str) -> int:
        """See the base class."""
        if not isinstance(string, str):
            return super().write(string)  # raises TypeError
        if fits := self.session.fit(string):
            super().write(fits)
        return len(string)

    def _watch_pipe_fd(self) -> None:
        """See the base class: runs in a thread of its own."""
        with contextlib.suppress(OSError, ValueError):  # code may close any descriptor
            while select.select([self._fid], [], []) and self._should_watch:
                with self._reading:
                    self._write_what_is_there()

    def _write_what_is_there(self) -> bool:
        """Read once, where it does not wait; return whether there was something."""
        waiting = int.from_bytes(fcntl.ioctl(self._fid, termios.FIONREAD, bytes(4)), sys.byteorder)
        if waiting:
            self.write(self._decoder.decode(os.read(self._fid, min(waiting, _READ_BYTES))))
        return waiting > 0

    def settle(self) -> None:
        """Publish what was written before this."""
        with self._reading, contextlib.suppress(OSError, ValueError):
            for _ in range(64):  # what is in the background may write without an end
                if not self._write_what_is_there():
                    break
        self.flush()


class NoOutputs(dict[int, list[Any]]):
    """Keeps nothing: IPython would keep all that each cell puts out for as long as the kernel lives, to save it as a notebook."""

    def __missing__(self, key: int) -> list[Any]:
        return []


class Kernel(IPythonKernel):
    """Runs each cell with the variables that its request has; afterwards they are as before."""

    def start(self) -> None:
        """See the base class. With a handler of its own the loop wakes up for an interrupt, too, while code awaits something."""
        super().start()
        self.io_loop.asyncio_loop.add_signal_handler(signal.SIGURG, lambda: None)

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """See the base class, which does not answer if the interrupt comes just before the code or after it."""
        self.session.begin()
        try:
            with _environment((parent.get("metadata") or {}).get("environment") or {}):
                await super().execute_request(stream, ident, parent)
        except KeyboardInterrupt:
            content = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": []}
            self.session.send(stream, "execute_reply", content, parent, ident=ident)
        for each in (sys.stdout, sys.stderr):
            if isinstance(each, Stream):
                each.settle()
        if self.session.left_out:
            self.session.send(self.iopub_socket, "gamebox_left_out", {"bytes": self.session.left_out}, parent)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class App(IPKernelApp):
    """The kernel's application. Nothing of what it prints is lost, however fast, up to the bound."""

    kernel_class = Type("__main__.Kernel", klass="ipykernel.kernelbase.Kernel").tag(config=True)
    outstream_class = DottedObjectName("__main__.Stream").tag(config=True)

    def _session_default(self) -> Session:
        return BoundedSession(parent=self)

    def init_iopub(self, context: Any) -> None:
        """See the base class. The default drops messages after the first 1000 that were not read yet."""
        context.sndhwm = 0
        super().init_iopub(context)


class DataFormatter(BaseFormatter):
    """The columns of a table of pandas."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        """See the base class."""
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(obj, getattr(pandas, "DataFrame", ())):
            return super().__call__(obj)
        if obj.size > MOST_CELLS:
            return None
        return {str(name): [_cell(each) for each in column] for name, column in obj.to_dict(orient="list").items()}


def _cell(value: Any) -> Any:
    with contextlib.suppress(Exception):
        if value is None or bool(value != value):  # of NaN and NaT
            return None
        if hasattr(value, "isoformat"):
            return value.isoformat()
    return value if isinstance(value, str | int | float) else str(value)


class ChartFormatter(BaseFormatter):
    """What a figure of matplotlib shows, as data."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        """See the base class."""
        figures = sys.modules.get("matplotlib.figure")
        if figures is None or not isinstance(obj, getattr(figures, "Figure", ())):
            return super().__call__(obj)
        try:
            from e2b_charts import chart_figure_to_dict

            return chart_figure_to_dict(obj)
        except Exception:  # noqa: BLE001  # a figure that it cannot read is still a picture
            return None


class DataJSONFormatter(JSONFormatter):
    """Lists and dicts as JSON, too."""

    def __call__(self, obj: Any) -> Any:
        """See the base class."""
        if isinstance(obj, list | dict):
            try:
                return json.loads(json.dumps(obj, default=_number)), {"expanded": True}
            except (TypeError, ValueError, RecursionError):
                return None
        return super().__call__(obj)


def _number(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(type(value).__name__)


def show_saved_images() -> None:
    """Have a picture that is saved to a file be shown as well."""
    try:
        from PIL.Image import Image
    except ImportError:
        return
    save = Image.save

    def save_and_show(image: Any, fp: Any, format: Any = None, **options: Any) -> None:  # noqa: A002
        save(image, fp, format, **options)
        if isinstance(fp, str | os.PathLike):
            display(image)

    Image.save = save_and_show  # type: ignore[method-assign,assignment]


def main() -> None:
    """Run the kernel."""
    app = App.instance()
    app.initialize(sys.argv[1:])
    shell = app.shell
    shell.colors = "NoColor"
    shell.history_manager.outputs = NoOutputs()
    shell.display_formatter.formatters["text/plain"].max_seq_length = 0
    for mime, formatter in (
        ("e2b/data", DataFormatter),
        ("e2b/chart", ChartFormatter),
        ("application/json", DataJSONFormatter),
    ):
        shell.display_formatter.formatters[mime] = formatter(parent=shell.display_formatter)
    show_saved_images()
    app.start()


if __name__ == "__main__":
    main()
