"""What others have written, as it may be shown: nothing in it moves a cursor, colours or turns a line round."""


def printable(text: str) -> str:
    """The text, with each character that would not be seen as itself in a terminal written as Python writes it."""
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
