"""Runs as the process of a Python kernel: ipykernel, with what clients of E2B expect of results beside it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.display import display
from traitlets import ObjectName, Type, Unicode

# Of a table that is sent as data beside its text; a larger one would fill the memory twice for nobody.
MOST_CELLS = 1_000_000


class Kernel(IPythonKernel):
    """Runs each cell with the variables that its request has; afterwards they are as before."""

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """See the base class."""
        with _environment((parent.get("metadata") or {}).get("environment") or {}):
            await super().execute_request(stream, ident, parent)


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
    """The kernel's application. Nothing of what it prints is lost, however fast."""

    kernel_class = Type("__main__.Kernel", klass="ipykernel.kernelbase.Kernel").tag(config=True)

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
