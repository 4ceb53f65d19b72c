"""Checkpoints: the durable state of one name, with one writer, a number that only grows, and a parent each."""

from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition, Inspection
from millrace.training.checkpoints.lease import FolderLease, LeaseOptions
from millrace.training.checkpoints.manifest import Manifest, SaveReason, SaveRequest
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import Part, PartState
from millrace.training.checkpoints.store import CheckpointStore, StoreOptions
from millrace.training.checkpoints.writer import CheckpointWriter

__all__ = [
    "CheckpointStore",
    "CheckpointWriter",
    "Condition",
    "Folder",
    "FolderLease",
    "Inspection",
    "LeaseOptions",
    "Manifest",
    "Part",
    "PartState",
    "SaveReason",
    "SaveRequest",
    "StoreOptions",
    "VerifiedCheckpoint",
]
