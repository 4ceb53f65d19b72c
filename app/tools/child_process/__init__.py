"""Starts a child process, watches it and ends it: for the local broker, the demo and `prove`."""
