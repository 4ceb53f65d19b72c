"""Records without structure: one value of fixed layout, one text, or bytes."""
