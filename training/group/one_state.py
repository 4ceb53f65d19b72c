"""The one state of a group: gathered from all members for a save, spread from the chief over all for a start.

Every method is called by all members in the same sequence, on their trainers' threads, between the same two calls.

A member accounts for its own partitions alone, and all members hold the same weights. A checkpoint holds the whole, and
nothing by member: any number of members resumes from it.
"""

import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import zip_longest
from typing import Any

import numpy as np

from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.group_join import GroupJoin
from millrace.pipelines.shaping.shaper import Shaper
from millrace.training.checkpoints.parts import Part, PartState
from millrace.training.errors import NotOneStateError
from millrace.training.group.meeting import Group
from millrace.training.ledger.ledger import EventSpan, Ledger
from millrace.training.model.call.reservoir import Reservoir, joined, share_of
from millrace.training.model.learner import Learner
from millrace.training.model.variables import assign, read
from millrace.training.telemetry.group_report import CHIEF
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.trainer.state import Progress, ShaperPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one member gives to the whole."""

    call: int
    """How many calls it has made."""
    digest: int
    """Of its weights."""
    ledger: Mapping[str, Any]
    """The facts of the ledger's part, with the accounts of its partitions."""
    witness: Mapping[str, Any]
    """The facts of the witness's part."""
    recreated: Mapping[Partition, int] = field(default_factory=dict)
    """Partitions of topics that were created again, with their first offsets."""

    def packed(self) -> bytes:
        """Return it as bytes."""
        facts = {
            "call": self.call,
            "digest": self.digest,
            "ledger": self.ledger,
            "witness": self.witness,
            "recreated": {str(partition): offset for partition, offset in self.recreated.items()},
        }
        return json.dumps(facts).encode()

    @classmethod
    def of(cls, raw: bytes) -> "Share":
        facts = json.loads(raw)
        recreated = {Partition.parse(text): int(offset) for text, offset in facts.pop("recreated").items()}
        return cls(**facts, recreated=recreated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The parts of a checkpoint that the members hold in shares."""

    ledger: PartState
    witness: PartState
    recreated: Mapping[Partition, int]
    shaping: Mapping[str, PartState] = field(default_factory=dict)
    """What is remembered of the records of each partition by what makes rows of them, by name; the chief's alone."""

    def parts(self) -> dict[str, PartState]:
        return {"ledger": self.ledger, "witness": self.witness, **self.shaping}


def whole_of(shares: Sequence[Share], partitions: Collection[Partition]) -> Whole:
    """Put the shares together; raise NotOneStateError unless they are shares of one state that holds `partitions`."""
    _require_one_of({share.call for share in shares}, "have made different numbers of calls")
    _require_one_of({share.digest for share in shares}, "hold different weights")
    common = [{key: share.ledger[key] for key in share.ledger if key not in _OF_PARTITIONS} for share in shares]
    _require_one_of({json.dumps(facts, sort_keys=True) for facts in common}, "know different interventions")
    held = Counter(text for share in shares for text in share.ledger["partitions"])
    expected = {str(partition) for partition in partitions}
    if wrong := sorted({text for text, times in held.items() if times > 1} | (expected ^ held.keys())):
        raise NotOneStateError(f"{wrong[0]} is accounted for {held[wrong[0]]} times in the group; nothing is saved")
    accounts = {text: account for share in shares for text, account in share.ledger["partitions"].items()}
    span = reduce(_wider, (share.ledger["event_span"] for share in shares))
    witness = {text: row for share in shares for text, row in share.witness.items()}
    # The witnesses of all must have counted what the ledgers of all count as learnt.
    for text in accounts.keys() | witness.keys():
        one = accounts.get(text, {})
        counted = one.get("learnt", 0) + sum(closed["learnt"] for closed in one.get("former", ()))
        seen = witness.get(text, (0,))[0]
        if seen != counted:
            raise NotOneStateError(f"{text}: the model has seen {seen} offsets and the ledger counts {counted}")
    return Whole(
        ledger=PartState(facts={**common[CHIEF], "partitions": accounts, "event_span": span}),
        witness=PartState(facts=witness),
        recreated={partition: offset for share in shares for partition, offset in share.recreated.items()},
    )


_OF_PARTITIONS = {"partitions", "event_span"}


def _require_one_of(found: Collection[Any], what: str) -> None:
    if len(found) > 1:
        raise NotOneStateError(f"the members of the group {what}, so nothing is saved; the group begins again")


def _wider(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the span that covers both; none where one is unknown."""
    if one is None or other is None:
        return None
    span = EventSpan(one["oldest_ms"], one["newest_ms"])
    if other["oldest_ms"] is None:
        return span.facts()
    return span.widened(other["oldest_ms"], other["newest_ms"]).facts()


def portion(state: PartState, partitions: Collection[Partition]) -> PartState:
    """Return the part of a ledger that accounts for these partitions alone."""
    mine = {str(partition) for partition in partitions}
    accounts = {text: facts for text, facts in state.facts["partitions"].items() if text in mine}
    return PartState(facts={**state.facts, "partitions": accounts})


def remembered_of(shares: Sequence[PartState], ledger: PartState) -> PartState:
    """Put together what the members remember of the records of their partitions.

    Raise NotOneStateError unless that is of all that the ledger accounts for, and as far as it does.
    """
    common = [{key: share.facts[key] for key in share.facts if key != "partitions"} for share in shares]
    _require_one_of({json.dumps(facts, sort_keys=True) for facts in common}, "remember different things of records")
    partitions = {text: facts for share in shares for text, facts in share.facts["partitions"].items()}
    reached = sorted((text, facts["position"]) for share in shares for text, facts in share.facts["partitions"].items())
    settled = sorted((text, account["position"]) for text, account in ledger.facts["partitions"].items())
    if wrong := [pair for pair in zip_longest(reached, settled) if pair[0] != pair[1]]:
        raise NotOneStateError(
            f"what shaping remembers is at {wrong[0][0]} and the ledger at {wrong[0][1]}; nothing is saved"
        )
    arrays = {name: array for share in shares for name, array in share.arrays.items()}
    return PartState(arrays=arrays, facts={**common[CHIEF], "partitions": partitions})


def remembered_portion(state: PartState, partitions: Collection[Partition]) -> PartState:
    """Return what is remembered of the records of these partitions alone."""
    mine = {str(partition) for partition in partitions}
    facts = {text: facts for text, facts in state.facts["partitions"].items() if text in mine}
    # What is of no partition of records, as labels that come later are not, is everybody's.
    others = state.facts["partitions"].keys() - mine
    arrays = {name: array for name, array in state.arrays.items() if name.partition("/")[0] not in others}
    return PartState(arrays=arrays, facts={**state.facts, "partitions": facts})


def digest_of(variables: Iterable[Any]) -> int:
    """Return a checksum over the bits of variables: the members' differ where their weights do."""
    checksum = 0
    for variable in variables:
        raw = np.ascontiguousarray(np.asarray(read(variable))).reshape(-1).view(np.uint8)
        checksum = zlib.crc32(raw.data, checksum)
    return checksum


Deal = tuple[tuple[Partition, ...], ...]
"""The partitions of each member, by its number."""


def deal(lags: Mapping[Partition, int], workers: int) -> Deal:
    """Share partitions out so that the members have about as many records to catch up with.

    The partitions with the most go first, each to the member that has the least so far; without any lag each gets as
    many partitions.
    """
    dealt: list[list[Partition]] = [[] for _ in range(workers)]
    load = [0] * workers
    for partition in sorted(lags, key=lambda partition: (-lags[partition], partition)):
        least = min(range(workers), key=lambda number: (load[number], len(dealt[number]), number))
        dealt[least].append(partition)
        load[least] += lags[partition]
    return tuple(tuple(sorted(partitions)) for partitions in dealt)


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
    join: GroupJoin | None = None
    """Of the shapers, the one that gives records labels that come later."""

    @property
    def weights(self) -> list[Any]:
        """Every variable that is the same on all members."""
        return [*self.learner.variables, *self.learner.shaping_state]

    def whole(self, call: int, partitions: Collection[Partition], recreated: Mapping[Partition, int]) -> Whole:
        """Gather the shares of all members; raise NotOneStateError unless they are shares of one state."""
        if self.join is not None:
            self.join.meet(self.group.exchange)
        share = Share(
            call=call,
            digest=digest_of(self.weights),
            ledger=self.ledger.snapshot().facts,
            witness=self.learner.witness.snapshot().facts,
            recreated=recreated,
        )
        whole = whole_of([Share.of(raw) for raw in self.group.exchange.gather(share.packed())], partitions)
        shaping = {one.name: self._collected(one, whole) for one in self.shapers}
        if (reservoir := self._reservoir) is not None:
            mine = reservoir.snapshot()
            shares = self.group.exchange.collect(packed(mine))
            mine.release()
            shaping[reservoir.name] = joined([unpacked(raw) for raw in shares]) if shares else PartState()
        return replace(whole, shaping=shaping)

    def take_whole(self, whole: Whole) -> None:
        """Take over the accounts of all partitions, to change and deal them anew."""
        self.ledger.restore(whole.ledger)
        self.learner.witness.restore(whole.witness)
        for one in self.shapers:
            ShaperPart(one).restore(whole.shaping[one.name])
        if (reservoir := self._reservoir) is not None:
            reservoir.restore(whole.shaping[reservoir.name])

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
        metrics = exchange.broadcast(packed(self.live.snapshot()))
        agreed = Opening.of(facts["opening"])
        mine = agreed.deal[membership.index]
        self.ledger.restore(portion(PartState(facts=facts[self.ledger.name]), mine))
        witness = self.learner.witness
        witness.restore(PartState(facts={str(p): row for p in mine if (row := facts[witness.name].get(str(p)))}))
        if not membership.is_chief:
            self.progress.restore(PartState(facts=facts[self.progress.name]))
            self.live.restore(unpacked(metrics))
        for one in self.shapers:
            part = ShaperPart(one)
            part.restore(self._dealt(part, lambda state, number: remembered_portion(state, agreed.deal[number])))
        if self.join is not None:
            self.join.begin(exchange)
        if (reservoir := self._reservoir) is not None:
            reservoir.take(self._dealt(reservoir, partial(share_of, members=membership.workers)))
        if weights:
            for variable in self.weights:
                received = exchange.broadcast_array(np.asarray(read(variable)))
                if not membership.is_chief:
                    assign(variable, received)
            digests = exchange.rows(np.array([digest_of(self.weights)], np.int64))[:, 0]
            if wrong := [number for number, digest in enumerate(digests) if digest != digests[CHIEF]]:
                raise NotOneStateError(f"worker {wrong[0]} holds other weights than the chief gave it; the group ends")
        return agreed

    def _collected(self, states: Shaper, whole: Whole) -> PartState:
        """Gather what all members remember at the chief; the others get nothing."""
        shares = [unpacked(raw) for raw in self.group.exchange.collect(packed(ShaperPart(states).snapshot()))]
        if shares and self.join is not None and states is self.join.shaper:
            joined = self.join.whole([(share.arrays, share.facts) for share in shares])
            shares = [PartState(arrays=arrays, facts=facts) for arrays, facts in joined]
        return remembered_of(shares, whole.ledger) if shares else PartState()

    @property
    def _reservoir(self) -> Reservoir | None:
        return self.learner.call.shaping.reservoir

    def _dealt(self, part: Part, share: Callable[[PartState, int], PartState]) -> PartState:
        """Return this member's share of what the chief holds; no member has to hold what is another's."""
        membership = self.group.membership
        state = part.snapshot() if membership.is_chief else None
        mine = None if state is None else share(state, CHIEF)
        for number in range(CHIEF + 1, membership.workers):
            raw = b"" if state is None else packed(share(state, number))
            received = self.group.exchange.spread(raw)
            if number == membership.index:
                mine = unpacked(received)
        assert mine is not None
        return mine


def packed(state: PartState) -> bytes:
    """Return a state as bytes."""
    buffer = io.BytesIO()
    facts = np.frombuffer(json.dumps(state.facts).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, **{**state.arrays, _FACTS: facts})
    return buffer.getvalue()


def unpacked(raw: bytes) -> PartState:
    """Return what `packed` has written."""
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        facts = json.loads(arrays[_FACTS].tobytes())
        return PartState(arrays={name: arrays[name] for name in arrays.files if name != _FACTS}, facts=facts)
