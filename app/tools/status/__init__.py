"""Watching in a terminal: what a trainer says of itself, as lines and drawings. Nothing here asks anybody anything."""
