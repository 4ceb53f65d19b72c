"""Memory: with `serve.memory: follow` the server itself knows the last records of each key."""
