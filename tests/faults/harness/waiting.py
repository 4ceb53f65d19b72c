"""Waiting for a condition, for a finite time."""

from app.proving.waiting import PATIENCE_S, wait_until

__all__ = ["PATIENCE_S", "wait_until"]
