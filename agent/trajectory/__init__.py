"""Trajectories: a run as a value of its own, to be exported, read by a person, replayed and compared."""

from .reading import from_file, of_record, of_run
from .recorded import Recorded, RecordedRun, RecordedStep

__all__ = ["Recorded", "RecordedRun", "RecordedStep", "from_file", "of_record", "of_run"]
