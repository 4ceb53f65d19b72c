"""The application around the trainer: command line, tools, HTTP, read model, service wiring, settings, page."""
