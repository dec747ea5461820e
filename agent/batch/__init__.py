"""Batches: many tasks, each in a sandbox of its own, with a folder of results for each; tasks with a result are not repeated."""

from .results import Result, State
from .running import Batch, run_batch
from .tasks import BatchTask, load_tasks

__all__ = ["Batch", "BatchTask", "Result", "State", "load_tasks", "run_batch"]
