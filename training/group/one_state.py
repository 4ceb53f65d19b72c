"""The one state of a group: gathered from all members for a save, spread from the chief over all for a start.

Every method is called by all members in the same sequence, on their trainers' threads, between the same two calls.
"""

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from millrace.consumers.records import Partition
from millrace.pipelines.shaping.shaper import Shaper
from millrace.training.checkpoints.parts import Part, PartState
from millrace.training.errors import NotOneStateError
from millrace.training.group.deal import Deal
from millrace.training.group.meeting import Group
from millrace.training.group.shares import Share, Whole, digest_of, portion, remembered_of, remembered_portion, whole_of
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.learner import Learner
from millrace.training.model.variables import assign, model_variables, optimizer_variables, read
from millrace.training.telemetry.group_report import CHIEF
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.trainer.state import Progress, ShaperPart

_FACTS = "facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """With what all members begin an incarnation, as the chief says it."""

    deal: Deal
    number: int
    """The checkpoint that the state comes from, or the newest one."""
    positions: Mapping[str, int]
    """Where that checkpoint stands, by partition."""

    def facts(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "deal": [[str(partition) for partition in mine] for mine in self.deal],
            "number": self.number,
            "positions": dict(self.positions),
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Opening":
        """Read it from JSON."""
        return cls(
            deal=tuple(tuple(map(Partition.parse, mine)) for mine in facts["deal"]),
            number=int(facts["number"]),
            positions={text: int(offset) for text, offset in facts["positions"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The parts that the members hold in shares or alike."""

    group: Group
    learner: Learner
    ledger: Ledger
    live: LiveMetrics
    progress: Progress
    shapers: Sequence[Shaper] = ()
    """What is remembered of the records by what makes rows of them."""

    @property
    def weights(self) -> list[Any]:
        """Every variable that is the same on all members."""
        model = self.learner.model
        return [*model_variables(model).values(), *optimizer_variables(model).values(), *self.learner.shaping_state]

    def whole(self, call: int, partitions: Collection[Partition], recreated: Mapping[Partition, int]) -> Whole:
        """Gather the shares of all members; raise NotOneStateError unless they are shares of one state."""
        share = Share(
            call=call,
            digest=digest_of(self.weights),
            ledger=self.ledger.snapshot().facts,
            witness=self.learner.witness.snapshot().facts,
            recreated=recreated,
        )
        whole = whole_of([Share.of(raw) for raw in self.group.exchange.gather(share.packed())], partitions)
        return replace(whole, shaping={one.name: self._collected(one, whole) for one in self.shapers})

    def take_whole(self, whole: Whole) -> None:
        """Take over the accounts of all partitions, to change and deal them anew."""
        self.ledger.restore(whole.ledger)
        self.learner.witness.restore(whole.witness)
        for one in self.shapers:
            ShaperPart(one).restore(whole.shaping[one.name])

    def restart_partition(self, partition: Partition, beginning: int) -> None:
        """End the history of a partition whose topic was created again, and forget its records."""
        self.ledger.restart_partition(partition, beginning)
        for one in self.shapers:
            one.forget(partition)

    def spread(self, opening: Opening | None, *, weights: bool) -> Opening:
        """Give the chief's state to all members; each keeps the accounts of its own partitions. Return the opening.

        The chief gives its opening and holds the accounts of all partitions; the others give none.
        """
        exchange, membership = self.group.exchange, self.group.membership
        said = b""
        if opening is not None:
            parts = (self.ledger, self.learner.witness, self.progress)
            facts = {part.name: part.snapshot().facts for part in parts}
            said = json.dumps({**facts, "opening": opening.facts()}).encode()
        facts = json.loads(exchange.broadcast(said))
        metrics = exchange.broadcast(_packed(self.live.snapshot()))
        agreed = Opening.of(facts["opening"])
        mine = agreed.deal[membership.index]
        self.ledger.restore(portion(PartState(facts=facts[self.ledger.name]), mine))
        witness = self.learner.witness
        witness.restore(PartState(facts={str(p): row for p in mine if (row := facts[witness.name].get(str(p)))}))
        if not membership.is_chief:
            self.progress.restore(PartState(facts=facts[self.progress.name]))
            self.live.restore(_unpacked(metrics))
        for one in self.shapers:
            self._deal(ShaperPart(one), agreed.deal)
        if weights:
            self._spread_weights()
        return agreed

    def _collected(self, states: Shaper, whole: Whole) -> PartState:
        """Gather what all members remember at the chief; the others get nothing."""
        shares = self.group.exchange.collect(_packed(ShaperPart(states).snapshot()))
        return remembered_of([_unpacked(raw) for raw in shares], whole.ledger) if shares else PartState()

    def _deal(self, part: Part, dealt: Deal) -> None:
        """Give each member what the chief remembers of its partitions; no member has to hold what is another's."""
        membership = self.group.membership
        state = part.snapshot() if membership.is_chief else None
        mine = None if state is None else remembered_portion(state, dealt[CHIEF])
        for number in range(CHIEF + 1, membership.workers):
            raw = b"" if state is None else _packed(remembered_portion(state, dealt[number]))
            received = self.group.exchange.spread(raw)
            if number == membership.index:
                mine = _unpacked(received)
        assert mine is not None
        part.restore(mine)

    def _spread_weights(self) -> None:
        exchange, membership = self.group.exchange, self.group.membership
        for variable in self.weights:
            received = exchange.broadcast_array(np.asarray(read(variable)))
            if not membership.is_chief:
                assign(variable, received)
        digests = exchange.rows(np.array([digest_of(self.weights)], np.int64))[:, 0]
        if wrong := [number for number, digest in enumerate(digests) if digest != digests[CHIEF]]:
            raise NotOneStateError(f"worker {wrong[0]} holds other weights than the chief gave it; the group ends")


def _packed(state: PartState) -> bytes:
    buffer = io.BytesIO()
    facts = np.frombuffer(json.dumps(state.facts).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, **{**state.arrays, _FACTS: facts})
    return buffer.getvalue()


def _unpacked(raw: bytes) -> PartState:
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        facts = json.loads(arrays[_FACTS].tobytes())
        return PartState(arrays={name: arrays[name] for name in arrays.files if name != _FACTS}, facts=facts)
