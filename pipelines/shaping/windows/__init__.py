"""Windows: the last records of a key as one row."""
