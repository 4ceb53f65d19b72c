"""Rebuilding a checkpoint of a deterministic run from its records.

Importing `app.tools.rebuild.rebuild` loads TensorFlow; this face does not.
"""
