"""How the lanes of pytest-xdist share the tests: what one lane runs as a whole, and in which order they take it.

A lane takes a whole file, because its tests may share what one of them has started. Of a long file whose tests share
nothing each test goes alone, so that no lane is still at such a file when the others are done. Lanes take one after the
other: the longest of each folder first, and the folders evenly over the whole time, so that tests that wait for
processes run beside tests that compute, and together they keep the cores busy.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.durations import ROOT, file_of, recorded, seconds_of

_LONG_S, _UNKNOWN_S = 40.0, 5.0
_SHARES = ('scope="module"', "scope='module'", "new_page: NewPage", ": SharedTrainer")
"""By these words a file shares something: a fixture of its own, the browser, or a trainer and its broker."""


class Shares(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Deals out what one lane runs as a whole, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def share_of(test: str) -> str:
    """Return the name of what one lane runs as a whole: a test with all its parameters, or a file."""
    file = file_of(test)
    return test.partition("[")[0] if _goes_by_test(file) else file


@cache
def _goes_by_test(file: str) -> bool:
    long = sum(seconds for name, seconds in recorded().items() if file_of(name) == file) > _LONG_S
    return long and not any(word in (ROOT / file).read_text() for word in _SHARES)


def places(tests: Sequence[str]) -> Mapping[str, float]:
    """Return the place of each test in the order in which lanes take them, between 0 and 1."""
    shares = _by(share_of, tests)
    seconds = {share: seconds_of(inside, recorded()) or _UNKNOWN_S for share, inside in shares.items()}
    begun: dict[str, float] = {}
    for folder in _by(_folder_of, shares).values():
        whole, before = sum(seconds[share] for share in folder) or 1.0, 0.0
        for share in sorted(folder, key=seconds.__getitem__, reverse=True):
            begun[share] = before / whole
            before += seconds[share]
    return {test: begun[share_of(test)] for test in tests}


def _folder_of(share: str) -> str:
    return share.split("/")[1]


def _by(key: Any, names: Iterable[str]) -> Mapping[str, list[str]]:
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        grouped[key(name)].append(name)
    return grouped
