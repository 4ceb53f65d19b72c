"""Waiting for a condition, for a finite time."""

from millrace.app.tools.prove.trainer_process import PATIENCE_S, wait_until

__all__ = ["PATIENCE_S", "wait_until"]
