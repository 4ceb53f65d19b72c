import os
import sys
import threading

import pytest

from consumers.precedence import stand_back


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows a niceness of threads")
def test_only_the_thread_that_stands_back_does_so() -> None:
    before, seen = niceness(), []

    def body() -> None:
        stand_back()
        seen.append(niceness())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(10.0)
    assert seen == [min(19, before + 5)]
    assert niceness() == before
