"""Bytes to blocks to a dataset.

Its modules are imported by name; this face imports nothing. The import linter lists the modules that load TensorFlow.
"""
