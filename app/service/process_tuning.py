"""Settings of the process that make it fast: the interpreter's thread switching and collector, the C allocator.

Owns these process-wide settings, each beside what it brings; called on the main thread around the imports, and on the
trainer's thread before the first call.
Threads of TensorFlow are set where its devices are (`training.model.strategy`), sizes of fetches and chunks where
Kafka's options are (`consumers.kafka.options`).
"""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_S = 0.001
"""After which a thread that computes in Python lets go of its lock, where others wait. At its own 5 ms the trainer
waits 15 ms between two calls while all of ingest runs; a record costs the same CPU, or 3 % more."""
# The numbers of these options in the malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = 32 * 2**20
"""More than this the C library does not accept."""


def tune() -> None:
    """Apply all of these settings."""
    sys.setswitchinterval(_SWITCH_S)
    keep_freed_memory()
    spare_the_collector()


@contextmanager
def sparing_imports() -> Iterator[None]:
    """Keep the cyclic collector off while modules are imported, and off what they hold for good.

    Half a million objects are made, of which 0.3 % are garbage, and later collections need not walk the others. A start
    takes half a second of CPU less.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def spare_the_collector() -> None:
    """Keep the cyclic collector off the hot path.

    Objects that exist now stay, so the collector need not walk them again, and records form no cycles. At
    Python's own thresholds the consumer's loop alone lags by 290 ms (p99) at full speed, without a collector by 80.
    """
    # Collected first: garbage that is frozen would stay for ever.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next block, instead of returning it to the kernel.

    Blocks, chunks and joined texts are some MB each. By itself glibc maps such pieces one by one, and each block begins
    with hundreds of page faults: without them JSON costs up to 15 % less CPU a record, raw records 5 %.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        # Setting one threshold ends the adjustment of both by glibc, so both are set.
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)
        mallopt(_M_TRIM_THRESHOLD, 16 * _LARGEST_FROM_HEAP)
