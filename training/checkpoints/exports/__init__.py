"""Exports: versions of a model that others serve, in a folder of their own; published, listed, verified and pruned."""
