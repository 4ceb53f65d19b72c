"""Measuring how fast this machine learns a user's records: one process alone, or the workers of a group.

Importing `app.tools.bench.trial` loads TensorFlow; this face does not.
"""
