"""Lists of varying length, from records to the compiled call: padded and ragged, on one replica and on two."""

import keras
import numpy as np
import pytest

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.errors import ModelError
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.call.compiled_call import as_the_model_takes_it
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.setup.strategy import DeviceOptions

SCHEMA = Schema(
    features=(
        Field(name="words", source="words", dtype="int64", shape=(3,), pad=0, ragged=True),
        Field(name="last", source="last", dtype="float32", shape=(2,), pad=0.0, length="known"),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)
PARTITION = Partition("t", 0)


def build() -> keras.Model:
    words = keras.Input((None,), name="words", dtype="int64", ragged=True)
    last, known = keras.Input((2,), name="last"), keras.Input((), name="known", dtype="int32")
    summed = keras.ops.sum(keras.layers.Embedding(100, 4)(words), axis=1)
    count = keras.layers.Reshape((1,))(keras.ops.cast(known, "float32"))
    together = keras.layers.Concatenate()([summed, last, count])
    model = keras.Model({"words": words, "last": last, "known": known}, keras.layers.Dense(1)(together))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


@pytest.mark.tensorflow
# The proof on two replicas makes the claims on one as well.
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_model_of_ragged_and_padded_lists_weighs_each_record_the_same(replicas: int) -> None:
    devices = DeviceOptions(replicas=replicas, deterministic=False, threads=None)
    learner = Learner(build, None, LearnerOptions(schema=SCHEMA, batch_size=8, devices=devices, seed=1))
    learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    assert [finding.holds for finding in ModelProof(learner).findings()] == [True] * (1 + replicas)


def test_lengths_travel_with_their_rows_and_what_is_cut_is_counted_once() -> None:
    lists = [[1, 2, 3, 4], [], [5], [6, 7, 8], [9] * 9]
    values = [f'{{"words": {each}, "last": [1], "y": 0}}'.encode() for each in lists]
    chunk = Chunk(
        partition=PARTITION,
        incarnation=1,
        start=0,
        end=5,
        offsets=np.arange(5),
        timestamps=np.zeros(5, np.int64),
        keys=[None] * 5,
        values=values,
        headers=[()] * 5,
        nbytes=0,
        fetched_at=0.0,
    )
    options = AssembleOptions(batch_size=2, batches_per_call=2, max_wait_s=1.0, shuffle=4)
    assembler = Assembler(SCHEMA, options, [PARTITION], incarnation=1)
    assembler.add(decode_chunk(chunk, make_decoder("json", SCHEMA)))
    ledger = Ledger()
    ledger.join(PARTITION, 0)
    ledger.begin_incarnation()
    while (block := assembler.take(0.0, flush=True)) is not None:
        rows = block.rows
        told = dict(zip(rows.offsets.ravel().tolist(), rows.features["words.lengths"].ravel().tolist(), strict=True))
        assert all(told[offset] == min(3, len(lists[offset])) for offset in told if offset >= 0)
        assert rows.features["words"].shape[2:] == (3,)
        assert rows.features["known"].tolist() == np.ones_like(rows.features["known"]).tolist()
        ledger.settle(block.facts)
    (account,) = ledger.statistics().partitions.values()
    assert account.truncated == {"words": 2}
    assert account.learnt == 5
    assert account.of_facts(account.facts()).truncated == {"words": 2}


def test_lengths_without_the_feature_that_they_are_of_are_told_by_name() -> None:
    with pytest.raises(ModelError, match=r"gives 'last.lengths' and not 'last'"):
        as_the_model_takes_it(build(), {"last.lengths": np.ones((4,), np.int32)}, {}, None)
