"""Rows on which a start tries the model: made up, or of real records."""
