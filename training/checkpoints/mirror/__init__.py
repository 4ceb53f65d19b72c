"""The mirror: copies of the checkpoints in an object store, or in another folder, for when the volume is lost."""
