"""Shapers: what makes rows of the records before they are blocks, what it remembers, and how the settings ask for it.

A kind of shaping is a section of the settings that is listed in `pipelines/shaping/__init__.py`. All that the rest of
the product asks of a kind, it asks of its section: whether it is used, which columns its rows have, and what shapes
them. What a shaper remembers is a part of every checkpoint under its own name. Rows are shaped on the generator's
thread; all else is for the trainer's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from millrace.consumers.records import Partition
from millrace.consumers.section import Section
from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.stream.assemble import Finish, Shape
from millrace.pipelines.stream.blocks import Block, BlockFacts
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped


class Shaper(Protocol):
    """What one kind of shaping remembers of each partition."""

    @property
    def name(self) -> str:
        """The name of its part of a checkpoint."""
        ...

    @property
    def setting(self) -> str:
        """The setting that asks for it, as an error names it."""
        ...

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Shape:
        """Begin an incarnation at what is settled; `at_once` settles records as they are shaped.

        Return what gives of a chunk its rows, and the records that give none, sorted by offset and each with the name
        of the section. Rows depend on the records of the partition and their offsets alone, not on how these are cut.
        """
        ...

    def closed(self, block: Block) -> Block:
        """Return a block that was just made as it is to be learnt; called with each block, in their sequence."""
        ...

    def settle(self, facts: BlockFacts) -> None:
        """Follow a block whose records are settled."""
        ...

    def forget(self, partition: Partition) -> None:
        """Forget a partition: its topic was created again."""
        ...

    def saved(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return what is remembered at what is settled: arrays and facts.

        So that the members of a group can put together what each remembers, an array's name is `<partition>/…`, and the
        fact `partitions` has for each partition at least its `position`.
        """
        ...

    def load(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        """Take over what `saved` has returned, or begin anew."""
        ...


class ShapingSection(Section):
    """The section of the settings of one kind of shaping. What is defined here is that of a kind that does nothing."""

    of_rows: ClassVar[bool] = True
    """Whether it shapes rows before the blocks. One that does not acts inside the compiled call, and has no shaper."""
    other_columns: ClassVar[bool] = False
    """Whether its rows have other columns than the records that they are made of."""
    is_recorded: ClassVar[bool] = True
    """Whether its settings are hyperparameters, which a start compares with those of the checkpoint."""

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        raise NotImplementedError

    def row_schema(self, schema: Schema) -> Schema:
        """Return the schema of its rows by that of the rows that come to it."""
        return schema

    def shaper(self, schema: Schema) -> Shaper | None:  # noqa: ARG002 - for those that shape rows
        """Return what shapes such rows and remembers nothing yet, if anything does.

        Raise ConfigError, whose text begins with the name of the section, if the settings do not fit the schema.
        """
        return None

    def without_effect(self) -> str | None:
        """Return a warning of settings that have no effect as they are; None if all have one."""
        return None


def open_shapers(
    shapers: Sequence[Shaper], incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False
) -> Shape | None:
    """Begin an incarnation of all of them; return what shapes a chunk by each in turn, or None if there are none.

    It returns the chunk with the rows of the last, and the records that any of them leaves out, sorted by offset.
    """
    if not shapers:
        return None
    shapes = [one.open(incarnation, positions, at_once=at_once) for one in shapers]

    def shape(decoded: Decoded) -> tuple[Decoded, Sequence[Skipped]]:
        left_out: list[Skipped] = []
        for each in shapes:
            decoded, more = each(decoded)
            left_out = sorted([*left_out, *more]) if left_out and more else [*left_out, *more]
        return decoded, left_out

    return shape


def closed_by(shapers: Sequence[Shaper]) -> Finish:
    """Return what makes a block that was just made one that is to be learnt, by each of them in turn."""

    def finish(block: Block) -> Block:
        for one in shapers:
            block = one.closed(block)
        return block

    return finish
