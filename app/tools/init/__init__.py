"""Drafts a first config and model for a topic: read its records, infer the columns, write two files."""
