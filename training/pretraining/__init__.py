"""Epochs over files, before the first live record."""
