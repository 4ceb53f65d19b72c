"""The one list of what may be skipped, why, and where. A skip that is not on it is a failure.

`tests/conftest.py` asks it of every test of the project, whichever folder the test lies in.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.sandbox import may_shut_in
from tests.faults.power_cord import usable_strace
from tests.programs import MISSING

_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Permitted:
    """A test that some machines cannot run."""

    test: str
    """Its file and name, without parameters; a file alone stands for all that is in it."""
    row: int | None
    """Of the matrix of faults; None where it stands for none."""
    why: str
    """What shows the same on such a machine."""
    where: str
    here: Callable[[], bool]
    """Whether this machine is such a one."""


def _may_not_mount() -> bool:
    if os.geteuid() != 0 or not _STATUS.exists():
        return True
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", _STATUS.read_text(), re.MULTILINE)
    return effective is None or not int(effective[1], 16) >> _CAP_SYS_ADMIN & 1


_ON_A_SMALL_VOLUME = (
    "test_with_keep_last_1_a_volume_of_four_checkpoints_is_enough_for_ever",
    "test_where_three_have_room_the_one_to_fall_back_to_makes_way",
    "test_the_newest_is_read_and_verified_before_its_fallback_makes_way",
    "test_the_advice_of_a_full_volume_works_when_it_is_followed",
    "test_where_nothing_may_go_the_advice_is_to_make_the_volume_larger",
    "test_a_start_on_a_volume_without_one_free_byte_takes_the_folder_and_saves",
    "test_saves_go_on_beside_other_files_that_fill_the_volume",
    "test_what_keep_asks_for_stays_on_a_volume_that_other_files_fill",
    "test_a_kill_at_any_instant_on_a_full_volume_loses_nothing",
    "test_kills_at_random_times_on_a_full_volume_lose_nothing",
)

PERMITTED = (
    Permitted(
        test="tests/faults/test_power_cord.py::test_the_kernel_sees_the_same",
        row=None,
        why="the other tests there see the same calls inside the process, and hold them to the same order",
        where="strace is not installed, or may not trace",
        here=lambda: usable_strace() is None,
    ),
    Permitted(
        test="tests/training/checkpoints/test_full_disk.py::test_a_file_system_that_fills_up_is_survived",
        row=16,
        why="the other tests there fill the disk by a failpoint and by a limit on the size of files",
        where="nobody may mount: not root, not Linux, or a container without CAP_SYS_ADMIN",
        here=_may_not_mount,
    ),
    *(
        Permitted(
            test=f"tests/training/checkpoints/test_full_volume.py::{test}",
            row=29,
            why="the other tests there fill the disk by a failpoint",
            where="nobody may mount: not root, not Linux, or a container without CAP_SYS_ADMIN",
            here=_may_not_mount,
        )
        for test in _ON_A_SMALL_VOLUME
    ),
    Permitted(
        test="tests/faults/test_full_volume.py",
        row=29,
        why="the tests of the store fill the disk by a failpoint",
        where="nobody may mount: not root, not Linux, or a container without CAP_SYS_ADMIN",
        here=_may_not_mount,
    ),
    Permitted(
        test="tests/faults/test_stop.py::test_sigterm_while_it_is_still_importing_ends_well",
        row=5,
        why="the other tests there send the signal later, when the process has said that it listens",
        where="there is no /proc, which tells when a process takes a signal",
        here=lambda: not _STATUS.exists(),
    ),
    Permitted(
        test="tests/deploy/test_pod.py",
        row=None,
        why="the other tests there hold the manifests to the restricted profile, and the image to the manifests",
        where="nobody may shut a process in: not root, not Linux, or a container without CAP_SYS_ADMIN",
        here=lambda: not may_shut_in(),
    ),
)


def judged(report: pytest.TestReport) -> pytest.TestReport:
    """Return the report, failed where it skips what this list does not permit on this machine."""
    if report.skipped and not hasattr(report, "wasxfail") and not _is_permitted(report):
        report.outcome = "failed"
        report.longrepr = f"skipped, which tests/faults/matrix/skips.py does not permit here: {report.longrepr}"
    return report


def _is_permitted(report: pytest.TestReport) -> bool:
    """Whether it is on the list, or lacks a program: where that must not be, as in CI, it has failed already."""
    if isinstance(report.longrepr, tuple) and report.longrepr[2].startswith(f"Skipped: {MISSING}"):
        return True
    name = report.nodeid.partition("[")[0]
    return any(entry.test in (name, name.partition("::")[0]) and entry.here() for entry in PERMITTED)
