"""Classes that appear: each text of a label gets the next number, in the sequence in which blocks hold the texts.

A decoded record has its text, since a number depends on what came before. The numbers are given when a block closes,
where the sequence of the rows is fixed. So a block knows which classes are new with it, and what is remembered moves
with the blocks that are settled: a checkpoint holds the classes that the weights have seen, and a restart or a rewind
gives those that follow their numbers once more. In deterministic mode these are the same ones.

A record of one class more than there may be leaves its block, and is set aside when the block is settled.

Owns the classes: ahead, for the blocks that are made, on the generator's thread; and behind, at what is settled, on the
trainer's. `open` makes the former of the latter, while no block is made.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.schema import Appearing, Column, Schema
from millrace.pipelines.shaping.figures import LabelFigures
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.blocks import Block, BlockFacts, Rows

log = logging.getLogger(__name__)
NAME = "classes"
_MOST_BYTES = 500
"""A longer text is no class: what is remembered is bounded."""
_NONE = -1
_SHOWN = 200


class Numbers:
    """The numbers of the texts of one label."""

    def __init__(self, options: Appearing, texts: Mapping[bytes, int] | None = None) -> None:
        self.options = options
        self.of_text = dict(texts or {})

    def take(self, texts: Column) -> tuple[Int64s, list[bytes]]:
        """Return the number of each text, below 0 where it gets none, and the texts that are new with these."""
        known, new = self.of_text, list[bytes]()
        numbers = self.known(texts)
        for place in np.flatnonzero(numbers == _NONE).tolist():
            text: Any = texts[place]
            if text not in known and len(known) < self.options.most and len(text) <= _MOST_BYTES:
                known[text] = len(known)
                new.append(text)
            numbers[place] = known.get(text, _NONE)
        return numbers, new

    def known(self, texts: Column) -> Int64s:
        """Return the number of each text, below 0 where it has none yet."""
        return np.fromiter(map(self.of_text.get, texts.tolist(), repeat(_NONE)), np.int64, len(texts))


def appearing_classes(schema: Schema) -> "AppearingClasses | None":
    """Return what gives the texts of labels their numbers; None if no label has such texts."""
    appearing = {label.name: label.appearing for label in schema.labels if label.appearing is not None}
    return AppearingClasses(appearing) if appearing else None


class AppearingClasses:
    """The classes of all labels whose texts appear."""

    name = NAME
    setting = "records.label.classes"

    def __init__(self, labels: Mapping[str, Appearing]) -> None:
        self._ahead = {name: Numbers(options) for name, options in labels.items()}
        self._settled = {name: Numbers(options) for name, options in labels.items()}
        self._incarnation = -1

    # The trainer's thread.

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Shape:
        """Begin an incarnation with the classes that are settled; chunks stay as they are."""
        del positions, at_once
        for name, settled in self._settled.items():
            if len(settled.of_text) > settled.options.most:
                raise ConfigError(
                    f"{self.setting}: {settled.options.most} for {name}, and {len(settled.of_text)} have appeared; "
                    "write that or more"
                )
        self._ahead = {name: Numbers(one.options, one.of_text) for name, one in self._settled.items()}
        self._incarnation = incarnation
        return lambda decoded: (decoded, ())

    def settle(self, facts: BlockFacts) -> None:
        """Remember the classes that are new with a block whose records are settled."""
        if facts.incarnation == self._incarnation:
            for label, text in facts.appeared:
                known = self._settled[label].of_text
                known[text] = len(known)
                log.info("records.label.classes: class %d of %s has appeared", known[text], label)

    def forget(self, partition: Partition) -> None:
        """Forget nothing: the weights know the classes of a topic that was created again."""

    def saved(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the classes at what is settled, by label, in the sequence of their numbers."""
        return {}, {
            "labels": {
                name: [text.decode(errors="surrogateescape") for text in numbers.of_text]
                for name, numbers in self._settled.items()
            },
        }

    def load(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        """Take over what `saved` has returned, or begin anew."""
        del arrays
        labels: Mapping[str, list[str]] = facts.get("labels", {})
        for name, numbers in self._settled.items():
            numbers.of_text = {text: number for number, text in enumerate(map(_bytes, labels.get(name, ())))}

    def figures(self) -> Mapping[str, LabelFigures]:
        """Return which classes there are, by label."""
        return {
            name: LabelFigures(
                known=len(numbers.of_text),
                most=numbers.options.most,
                classes=tuple(map(_shown, list(numbers.of_text)[:_SHOWN])),
            )
            for name, numbers in self._settled.items()
        }

    # The generator's thread.

    def closed(self, block: Block) -> Block:
        """Return a block with numbers for the texts of its labels, without the records whose class gets none."""
        rows, facts = block.rows, block.facts
        offsets = rows.offsets.ravel()
        kept, labels = offsets >= 0, dict(rows.labels)
        appeared = list[tuple[str, bytes]]()
        for name, ahead in self._ahead.items():
            texts, places = labels[name].ravel(), np.flatnonzero(kept)
            numbers, new = ahead.take(texts[places])
            kept[places] = numbers >= 0
            appeared += [(name, text) for text in new]
            # Absent rows are copies of present ones.
            column = np.maximum(ahead.known(texts), 0).astype(ahead.options.dtype)
            labels[name] = column.reshape(rows.offsets.shape)
        rows = rows._replace(labels=labels)
        facts = replace(facts, appeared=tuple(appeared))
        unplaced = np.flatnonzero((offsets >= 0) & ~kept)
        if unplaced.size:
            partitions = {span.index: span.partition for span in facts.spans}
            at = zip(rows.partitions.ravel()[unplaced].tolist(), offsets[unplaced].tolist(), strict=True)
            rows = _only(rows, np.flatnonzero(kept))
            facts = replace(
                facts,
                batches=len(rows.weights),
                unplaced=tuple((partitions[index], offset) for index, offset in at),
            )
        return replace(block, rows=rows, facts=facts)


def with_classes(schema: Schema, facts: Mapping[str, Any]) -> Schema:
    """Return a schema whose labels list the classes that have appeared; one that has not is an empty text."""
    listed: Mapping[str, list[str]] = facts.get("labels", {})
    labels = []
    for label in schema.labels:
        if label.appearing is not None:
            most = label.appearing.most
            classes = (*(_shown(_bytes(text)) for text in listed.get(label.name, ())), *[""] * most)[:most]
            label = replace(label.as_learnt, classes=classes, one_of=tuple(range(most)))  # noqa: PLW2901 - the same label
        labels.append(label)
    return replace(schema, labels=tuple(labels))


def _bytes(kept: str) -> bytes:
    return kept.encode(errors="surrogateescape")


def _shown(text: bytes) -> str:
    """Return a text that UTF-8 can hold, as answers and exports do: a record's may be any bytes."""
    return text.decode(errors="backslashreplace")


def _only(rows: Rows, kept: Int64s) -> Rows:
    """Return these rows of a block, the last batch filled up with absent rows."""
    size = rows.offsets.shape[1]
    batches = -(-len(kept) // size)
    places = np.concatenate([kept, kept[np.arange(batches * size - len(kept)) % max(1, len(kept))]])

    def taken(column: Any) -> Any:
        return column.reshape(-1, *column.shape[2:])[places].reshape(batches, size, *column.shape[2:])

    features = {name: taken(column) for name, column in rows.features.items()}
    labels = {name: taken(column) for name, column in rows.labels.items()}
    weights, offsets, partitions = map(taken, (rows.weights, rows.offsets, rows.partitions))
    absent = np.arange(batches * size).reshape(batches, size) >= len(kept)
    weights[absent], offsets[absent], partitions[absent] = 0.0, -1, -1
    return Rows(features, labels, weights, offsets, partitions)
