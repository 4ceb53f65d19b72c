"""The ledger: what became of every offset. Never imports TensorFlow."""
