"""Batches: many tasks, each in its own sandbox, with a folder of results for each. Tasks that have a result are
skipped.
"""

from .results import Result, State
from .running import Batch, run_batch
from .tasks import BatchTask, load_tasks

__all__ = ["Batch", "BatchTask", "Result", "State", "load_tasks", "run_batch"]
