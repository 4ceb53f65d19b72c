"""Makes text from others safe to print: nothing in it moves the cursor, sets colours or reverses a line."""


def printable(text: str) -> str:
    """Return the text with each character that a terminal would not show as itself escaped as Python does."""
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
