"""Weights in and out: of a checkpoint, of a file, of another model."""
