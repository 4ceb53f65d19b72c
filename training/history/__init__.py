"""The history of a model: where a checkpoint comes from, and how to go back to one."""
