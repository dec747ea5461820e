"""All routes of the dialect, in the order in which they are tried."""

from __future__ import annotations

from . import sandboxes, unknown
from .envd import files, filesystem, process_service
from .storage import content, snapshots, volumes
from .templates import api, uploads

ROUTERS = (
    *(sandboxes.router, snapshots.router, volumes.router, content.router, process_service.router, filesystem.router, files.router),
    *(uploads.router, api.router),
    unknown.router,
    unknown.envd_router,
)
