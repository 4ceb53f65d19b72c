"""What happens when a training call fails: restore, isolate the culprits, guard against crash loops."""
