"""Training: the model, its ledger and its checkpoints, and the thread that keeps them one state."""
