"""The compiled call: test, then train; what guards, shapes and measures an update."""
