"""The user's model before it learns: its file, its devices, its fit to the records, what Keras ignores."""
