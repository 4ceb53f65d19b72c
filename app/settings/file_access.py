"""Who else can read a file that holds a secret. Reads modes only, never the content."""

import os
import stat
from pathlib import Path


def exposure(path: Path) -> str | None:
    """Return the complaint about a secret's file that every user of this machine can read; None where none is due.

    The file is the one that a symbolic link leads to. A file counts as private below a folder that shuts others out,
    and on a read-only mount: Kubernetes mounts Secrets so, and only the pod sees them.
    """
    try:
        real = path.resolve(strict=True)
        if not real.stat().st_mode & stat.S_IROTH or os.statvfs(real).f_flag & os.ST_RDONLY:
            return None
        if not all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents):
            return None
    except OSError:
        return None  # whoever reads it says why it cannot be read
    return f"every user of this machine can read {path}; make it private: chmod 600 {path}"
