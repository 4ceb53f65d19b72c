"""The read model: what is known about the running service, as frozen values. Never imports FastAPI."""
