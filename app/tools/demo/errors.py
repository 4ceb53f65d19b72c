"""What can go wrong with the demo.

MillraceError
└── DemoError       one of its children ended by itself, or does not come up: exit 1
"""

from millrace.consumers.errors import MillraceError


class DemoError(MillraceError):
    """The demo cannot go on."""
