"""The live stream: bytes to columns, columns to blocks, blocks to the dataset that the trainer draws from.

Its modules are imported by name; this face imports nothing, and of them `dataset` alone loads TensorFlow.
"""
