"""A first config and model for a topic that nobody has described: look at its records, infer, write two files."""
