"""Which process holds a folder. Reads only: nothing is taken over, nothing is written.

Runs on any thread. A lock that can be shared has no holder. It is released at once, and a writer that arrives in that
very instant just tries again.
"""

import fcntl
import os

from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import describe_holder


def holder_of(folder: Folder) -> str | None:
    """Describe the process that holds the folder; None while none does."""
    newest = folder.highest_term()
    try:
        handle = os.open(folder.lock(newest), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return describe_holder(folder, newest)
    else:
        return None
    finally:
        os.close(handle)
