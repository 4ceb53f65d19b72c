"""Text from others, as a terminal may show it."""


def printable(text: str) -> str:
    """Return the text with each character that a terminal would not show as itself escaped as Python does.

    So nothing in a text from others moves the cursor, sets colours or reverses a line.
    """
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
