"""CSV: one line a record."""
