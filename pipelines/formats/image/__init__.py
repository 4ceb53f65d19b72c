"""Images in fields of other formats: whole JPEGs and PNGs, and their pixels."""
