"""Detectors: what watches the scores of each call, and marks where they change."""
