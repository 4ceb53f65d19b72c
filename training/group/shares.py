"""A member's share of the state, and the whole that the shares of all come to. Pure but for the digest.

A member accounts for its own partitions alone, and all members hold the same weights. A checkpoint holds the whole, and
nothing by member: any number of members resumes from it.
"""

import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any

import numpy as np

from millrace.consumers.records import Partition
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import NotOneStateError
from millrace.training.ledger.event_span import EventSpan
from millrace.training.model.variables import read
from millrace.training.telemetry.group_report import CHIEF


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
        """Read it from bytes."""
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
        """Return the parts by name."""
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
    _require_counts(accounts, witness)
    return Whole(
        ledger=PartState(facts={**common[CHIEF], "partitions": accounts, "event_span": span}),
        witness=PartState(facts=witness),
        recreated={partition: offset for share in shares for partition, offset in share.recreated.items()},
    )


_OF_PARTITIONS = {"partitions", "event_span"}


def _require_one_of(found: Collection[Any], what: str) -> None:
    if len(found) > 1:
        raise NotOneStateError(f"the members of the group {what}, so nothing is saved; the group begins again")


def _require_counts(accounts: Mapping[str, Any], witness: Mapping[str, Sequence[int]]) -> None:
    """Raise NotOneStateError unless the witnesses of all have counted what the ledgers of all count as learnt."""
    for text in accounts.keys() | witness.keys():
        account = accounts.get(text, {})
        counted = account.get("learnt", 0) + sum(closed["learnt"] for closed in account.get("former", ()))
        seen = witness.get(text, (0,))[0]
        if seen != counted:
            raise NotOneStateError(f"{text}: the model has seen {seen} offsets and the ledger counts {counted}")


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
    arrays = {name: array for name, array in state.arrays.items() if name.partition("/")[0] in mine}
    return PartState(arrays=arrays, facts={**state.facts, "partitions": facts})


def digest_of(variables: Iterable[Any]) -> int:
    """Return a checksum over the bits of variables: the members' differ where their weights do."""
    checksum = 0
    for variable in variables:
        raw = np.ascontiguousarray(np.asarray(read(variable))).reshape(-1).view(np.uint8)
        checksum = zlib.crc32(raw.data, checksum)
    return checksum
