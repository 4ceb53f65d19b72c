"""The terminal view of a running service: its status, once or updated each second."""
