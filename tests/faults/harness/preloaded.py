"""What the fork server imports before its first fork: all that `millrace run` imports, and nothing that it runs."""

import gc

import app.cli
import app.run
import app.service.logs
import app.service.service
import tests.faults.harness.proven

__all__ = ["app", "tests"]

gc.collect()
gc.freeze()  # so that no fork copies pages only because the collector has looked at them
