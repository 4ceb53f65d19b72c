"""The golden set: records that are never learnt, scored with the weights of each checkpoint."""
