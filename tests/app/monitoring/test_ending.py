"""What the log says of a run that has ended."""

from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.verdict import ending_of
from millrace.training.checkpoints import SaveReason
from tests.app.api_rig import P0, Rig


def test_the_end_says_what_was_learnt_how_well_and_where_it_is_saved(rig: Rig) -> None:
    rig.produce(P0, 12, bad=2)
    rig.learn_all()
    rig.publish(SaveReason.STOP, 0)
    rig.post()
    assert ending_of(take(rig.service)) == (
        "learnt 10 records, set aside 2 malformed. Accuracy 0.75 over the last minute (base rate: 0.75). Checkpoint 1 "
        "holds all of it."
    )


def test_a_run_without_records_says_that_there_were_none(rig: Rig) -> None:
    assert ending_of(take(rig.service)) == "there was nothing to learn. Checkpoint 0 holds all of it."
