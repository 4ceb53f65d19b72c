import subprocess
import sys


def test_a_tuned_process_freezes_its_objects_and_hands_the_lock_over_soon() -> None:
    """Run in a process of its own, because the settings stay."""
    imports = "import gc, sys; from millrace.app.service.process import tune"
    program = f"{imports}; tune(); print(gc.get_freeze_count(), sys.getswitchinterval())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    frozen, interval = done.stdout.split()
    assert int(frozen) > 1000
    assert float(interval) <= 0.001


def test_what_is_imported_is_frozen_and_collected_neither_then_nor_later() -> None:
    program = """
import gc
from millrace.app.service.process import sparing_imports
collected = []
gc.callbacks.append(lambda phase, info: collected.append(phase))
with sparing_imports():
    import millrace.app.settings
print(len(collected), gc.get_freeze_count(), gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    collected, frozen, enabled = done.stdout.split()
    assert (collected, enabled) == ("0", "True")
    assert int(frozen) > 10_000
