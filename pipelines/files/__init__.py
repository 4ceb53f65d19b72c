"""Files read in epochs: which shards, their records as rows, one dataset of all, in one process or several."""
