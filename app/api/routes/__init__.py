"""The routes, by what they serve."""
