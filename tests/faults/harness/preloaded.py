"""What the fork server imports before its first fork: all that `millrace run` imports, and nothing that it runs."""

import gc

import millrace.app.cli
import millrace.app.run
import millrace.app.service.logs
import millrace.app.service.service
import tests.faults.harness.proven

__all__ = ["millrace", "tests"]

gc.collect()
gc.freeze()  # so that no fork copies pages only because the collector has looked at them
