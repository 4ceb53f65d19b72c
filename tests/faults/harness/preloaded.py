"""What the fork server does before its first fork: it imports all that `millrace run` imports, and converts its graphs.

It runs no operation of TensorFlow.
"""

import gc

import app.cli
import app.run
import app.service.logs
import app.service.service
from tests.faults.harness.converted import convert

__all__ = ["app"]

convert()
gc.collect()
gc.freeze()  # so that no fork copies pages only because the collector has looked at them
