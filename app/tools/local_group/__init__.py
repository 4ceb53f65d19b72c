"""Runs all workers of a group on this machine: for trying, and for tests."""
