"""Whether the records are as they were: a sample of each window of them, compared with the windows before."""
