"""Checkpoints: the durable state of one name, with one writer, a number that only grows, and a parent each."""

from training.checkpoints.folder import Folder
from training.checkpoints.inspection import Condition, Inspection
from training.checkpoints.lease import FolderLease, LeaseOptions
from training.checkpoints.manifest import Manifest, SaveReason, SaveRequest
from training.checkpoints.part_files import VerifiedCheckpoint
from training.checkpoints.parts import Part, PartState
from training.checkpoints.store import CheckpointStore, StoreOptions
from training.checkpoints.writer import CheckpointWriter

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
