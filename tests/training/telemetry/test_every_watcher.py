"""Every watcher that the service makes."""

from millrace.app.service import watchers
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer.relearning import OF_ONE_RUN


def test_a_rebuild_compares_the_part_of_no_watcher() -> None:
    made = {one for one in Watcher.__subclasses__() if one.__module__.startswith("millrace.")}
    assert made == {one for one in vars(watchers).values() if isinstance(one, type) and one in made}
    assert {str(one.name) for one in made} <= OF_ONE_RUN
