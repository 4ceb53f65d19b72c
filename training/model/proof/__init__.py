"""The proofs at a start, on the user's own model."""
