"""The event log: what happened in runs, stored so that it can be verified, shown, and continued."""

from .log import EventLog, Logged, RunWriter, default_path, existing
from .run_record import CallRecord, RunRecord, StepRecord, record_of, tree_of
from .verify import Flaw, Verdict, is_trusted, verify, verify_all

__all__ = [
    "CallRecord",
    "EventLog",
    "Flaw",
    "Logged",
    "RunRecord",
    "RunWriter",
    "StepRecord",
    "Verdict",
    "default_path",
    "existing",
    "is_trusted",
    "record_of",
    "tree_of",
    "verify",
    "verify_all",
]
