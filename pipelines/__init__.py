"""Bytes to blocks to a dataset.

Its modules are imported by name; this face imports nothing, and nothing here but `pipelines.dataset` loads TensorFlow.
"""
