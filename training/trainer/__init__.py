"""The trainer's thread: the loop over calls, saves, and what it announces."""
