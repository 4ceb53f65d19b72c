"""The reckoning: all that was written is learnt, once, by the witnesses' word."""

from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic


def assert_learnt_once(run: Run, topic: Topic, shelf: Shelf | None = None) -> Statement:
    """Wait until the trainer stands at the topic's end, have it save, and compare its weights with what was written.

    Neither the count of the trainer nor its offsets are believed: the witness in the weights and the ids inside the
    records are compared with what the broker has acknowledged. The checkpoint that says so. `shelf` is where it saves,
    if that is not the folder of its own project.
    """
    run.wait_for(lambda: run.settled() == topic.records, f"all of {topic.records} offsets were settled")
    code, answer = run.ask("POST", "/checkpoints?wait=60s")
    assert code == 201, answer
    statement = (shelf or Shelf(run.project.folder)).statement(int(answer["checkpoint"]["number"]))
    for partition in range(topic.partitions):
        ids = list(topic.learnable(partition))
        assert statement.seen[partition] == topic.evidence(partition)
        assert statement.ids[partition] == (len(ids), sum(ids), sum(i * i for i in ids))
    return statement
