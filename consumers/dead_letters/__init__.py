"""Dead letters: what was set aside, produced to a topic, read back, produced again."""
