"""The HTTP side: what the service answers, and what may be asked of it."""
