"""Faults: the ways in which a process is killed."""

from millrace.app.tools.prove.kills import SAVE_POINTS, AfterSave, AfterStart, AtPoint, KillMethod, WhileLearning, plan

InSave = AtPoint

__all__ = ["SAVE_POINTS", "AfterSave", "AfterStart", "AtPoint", "InSave", "KillMethod", "WhileLearning", "plan"]
