"""URLs of servers in settings: without a login, a query or a fragment. Pure; runs anywhere."""

import re
from collections.abc import Callable

_URL = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")


def url_of(what: str, example: str, login: str) -> Callable[[str], str]:
    """Return a validator of the URL of `what`, which takes the slash from its end; `login` says where a login goes."""

    def checked(value: str) -> str:
        if "@" in value:
            # Without the value, which may hold a password.
            raise ValueError(f"a URL with a user would stand in logs; {login}")
        if not _URL.fullmatch(value):
            raise ValueError(f"{value!r} is no URL of a {what}; write it as in {example}")
        return value.rstrip("/")

    return checked
