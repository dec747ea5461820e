"""The event log: what happened in runs, stored so that it can be verified, shown and resumed."""

from .log import EventLog, Logged, RunWriter, default_path, existing
from .reading import RunRecord, StepRecord, record_of
from .verify import Flaw, Verdict, is_trusted, verify, verify_all

__all__ = [
    "EventLog", "Flaw", "Logged", "RunRecord", "RunWriter", "StepRecord", "Verdict", "default_path", "existing", "is_trusted",
    "record_of", "verify", "verify_all",
]  # fmt: skip
