"""Checkpoints in words, in rows and as JSON in the shapes of the HTTP answers. Pure; nothing is read here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millrace.app.api.checkpoint_reads import best_number, in_full
from millrace.app.monitoring.checkpoint_models import Checkpoint, LineageAnswer
from millrace.app.monitoring.lineage_view import event_time_of, lineage_fields, rewound_of, skips_of
from millrace.consumers.rounded import rounded_age, rounded_size, rounded_value
from millrace.training.checkpoints.inspection import Condition, Inspection
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.history.comparison import Comparison, Pair, VariableDifference
from millrace.training.history.lineage import CheckpointLineage
from millrace.training.ledger.account import PartitionAccount

_WIDTH = 14
_SHORT = 12
_VERSIONS = ("millrace", "python", "tensorflow", "keras", "numpy")

VARIABLES = ("variable", "shape", "largest", "mean", "differing")


def watched_in(found: Sequence[Inspection]) -> str | None:
    """Return the metric that the newest checkpoint of a list watches; None if none says so."""
    return next((one.manifest.measured.watched for one in found if one.manifest and one.manifest.measured), None)


def headings(watched: str | None) -> list[str]:
    """Return the headings of the list; the watched metric has a column where there is one."""
    metric = [] if watched is None else [watched]
    return ["number", "condition", "parent", "step", "age", "size", *metric, "reason", "note"]


def as_row(found: Inspection, watched: str | None, *, best: int | None, now_s: float) -> list[str]:
    """Return one row of the list, with sizes and ages rounded for people."""
    manifest, lineage = found.manifest, found.lineage
    metric = [] if watched is None else [""]
    if manifest is None:
        name = found.name if found.number is None else str(found.number)
        parent = "" if lineage is None else _or_none(lineage.parent)
        return [name, found.condition, parent, "", "", "", *metric, "", _why(found)]
    if watched is not None and watched in manifest.metrics:
        metric = [rounded_value(manifest.metrics[watched], 4)]
    return [
        str(manifest.number),
        found.condition,
        _or_none(manifest.parent),
        f"{manifest.step:,}",
        rounded_age(now_s - manifest.created.timestamp()),
        rounded_size(manifest.size),
        *metric,
        manifest.reason,
        "; ".join(filter(None, _remarks(found, manifest, best))),
    ]


def listed(found: Sequence[Inspection]) -> dict[str, Any]:
    """Return the list in the shape of `GET /checkpoints`."""
    brief = {*Checkpoint.model_fields, "verified"} if any(one.deep for one in found) else set(Checkpoint.model_fields)
    return {
        "checkpoints": [
            in_full(one).model_dump(include=brief, exclude_none=True) for one in found if one.number is not None
        ],
        "others": [{"name": one.name, "condition": one.condition.value} for one in found if one.number is None],
        **({} if (best := best_number(found)) is None else {"best": best}),
    }


def described(lineage: CheckpointLineage) -> dict[str, Any]:
    """Return one checkpoint in the shape of `GET /checkpoints/{number}`, without the envelope."""
    checkpoint = in_full(lineage.found)
    answer = LineageAnswer(as_of="", name="", version="", checkpoint=checkpoint, **lineage_fields(lineage))
    return answer.model_dump(exclude_none=True, exclude={"as_of", "name", "version"})


def in_words(lineage: CheckpointLineage) -> Iterator[str]:
    """Give one checkpoint line by line, for people."""
    found = lineage.found
    yield _fact("checkpoint", f"{found.number} ({'; '.join([found.condition, *found.problems])})")
    if found.manifest is not None:
        manifest = found.manifest
        yield _fact("parent", _or_none(manifest.parent))
        yield _fact("step", f"{manifest.step}, incarnation {manifest.incarnation}, term {manifest.term}")
        yield _fact("written", f"{manifest.created_at}, {manifest.size:,} bytes in {len(manifest.files)} files")
        ordered = "" if manifest.ordered_by is None else f", ordered by {manifest.ordered_by}"
        yield _fact("why", manifest.reason + ordered + ("" if manifest.note is None else f": {manifest.note}"))
        if found.pins:
            yield _fact("pinned", ", ".join(f"by {pin.by} since {pin.since}" for pin in found.pins))
        yield from _metrics(found.manifest)
        yield from _made_with(found.manifest.provenance)
        yield from _pretrained(found.manifest.provenance)
        yield from _forked(found.manifest.provenance)
        # Which weights the model began with, where it took some over.
        if (taken := found.manifest.provenance.get("initial_weights")) is not None:
            counts = [f"{len(taken[word])} {word}" for word in ("grown", "new", "dropped") if taken[word]]
            table = ", ".join([f"{taken['kept']} kept", *counts])
            yield _fact("weights of", f"{taken['source']} (sha256 {taken['sha256'][:_SHORT]}): {table}")
        # One line for each row of ancestors.
        label = "parents"
        for link in lineage.chain:
            row = str(link.first) if link.count == 1 else f"{link.first}..{link.last} ({link.count})"
            ordered = "" if link.ordered_by is None else f" by {link.ordered_by}"
            note = "" if link.note is None else f": {link.note}"
            hashes = {"settings": link.config_sha256, "model.py": link.model_sha256}
            known = ", ".join(f"{name} {digest[:_SHORT]}" for name, digest in hashes.items() if digest is not None)
            code = f" ({known})" if known else ""
            yield _fact(label, f"{row} {link.reason or 'no longer on disk'}{ordered}{note}{code}")
            label = ""
    if found.condition is not Condition.GOOD:
        return
    yield ""
    for partition, facts in lineage.partitions.items():
        yield _fact(str(partition), _offsets(facts))
    if (event_time := event_time_of(lineage.event_span)) is not None:
        yield _fact("event time", f"{event_time.oldest} to {event_time.newest}")
    for skip in skips_of(lineage.orders, lineage.partitions) or ():
        by = "" if skip.by is None else f" by {skip.by}"
        lifted = "" if skip.lifted_by is None else f"; taken back by checkpoint {skip.lifted_by}"
        passed = f"{skip.passed:,} of {skip.offsets:,} offsets skipped"
        yield _fact("skipped", f"{', '.join(skip.ranges)} ({skip.order}{by}: {skip.reason}): {passed}{lifted}")
    if (last := rewound_of(lineage.orders)) is not None:
        by, why = ("" if last.by is None else f" by {last.by}"), ("" if last.reason is None else f": {last.reason}")
        yield _fact("last rewind", f"checkpoint {last.number}, back to {last.to}{by}{why}")


def _metrics(manifest: Manifest) -> Iterator[str]:
    """Give one line for each live metric, the watched one first, and one for the golden set."""
    measured = manifest.measured
    watched = None if measured is None else measured.watched
    label = "metrics"
    for name in sorted(manifest.metrics, key=lambda name: (name != watched, name)):
        guess = None if measured is None else measured.baseline.get(name)
        beside = [] if guess is None else [f"guessing scores {rounded_value(guess, 4)}"]
        if measured is not None and name == watched:
            better = "higher" if measured.higher_is_better else "lower"
            beside += [f"watched, {better} is better", f"{measured.records:,} records"]
        yield _fact(
            label, f"{name} {rounded_value(manifest.metrics[name], 4)}" + (f" ({'; '.join(beside)})" if beside else "")
        )
        label = ""
    if (golden := manifest.golden) is not None:
        values = ", ".join(f"{name} {rounded_value(value, 4)}" for name, value in sorted(golden.values.items()))
        yield _fact("golden set", f"{values} ({golden.rows:,} records, sha256 {golden.sha256[:_SHORT]})")


def _made_with(provenance: Mapping[str, Any]) -> Iterator[str]:
    for key, label in (("model_sha256", "model.py"), ("format_sha256", "format"), ("config_sha256", "settings")):
        if key in provenance:
            yield _fact(label, f"sha256 {provenance[key]}")
    versions = [f"{name} {provenance[name]}" for name in _VERSIONS if name in provenance]
    if versions:
        yield _fact("versions", ", ".join(versions))
    if "topics" in provenance:
        yield _fact("kafka", f"cluster {provenance.get('cluster_id')}, topics {', '.join(provenance['topics'])}")


def _pretrained(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Give what the beginning was pretrained on, where it was, in a line each."""
    label = "pretrained"
    for sentence in in_sentences(provenance["pretrained"]) if "pretrained" in provenance else ():
        yield _fact(label, sentence)
        label = ""


def _offsets(facts: PartitionAccount) -> str:
    """Write an account as `offsets 0..1199: learnt 1,190, set aside 8 malformed, skipped 2 by rewind-17`."""
    parts = [f"learnt {facts.learnt:,}"]
    parts += [f"set aside {count:,} {reason.value}" for reason, count in facts.set_aside.items()]
    parts += [f"skipped {count:,} by {order}" for order, count in facts.skipped.items()]
    parts += [f"filtered {facts.filtered:,}"] if facts.filtered else []
    parts += [f"{count:,} {word}" for word, count in (("gaps", facts.gaps), ("lost to retention", facts.lost)) if count]
    parts += [f"{count:,} cut in {feature}" for feature, count in facts.truncated.items()]
    if facts.position == facts.start:
        return f"begins at {facts.start}, nothing is settled yet"
    return f"offsets {facts.start}..{facts.position - 1}: " + ", ".join(parts)


def _forked(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Give where the model was forked from, where it was, in a line each."""
    if (fork := provenance.get("forked_from")) is None:
        return
    counts = ", ".join(f"{len(fork[word])} {word}" for word in ("grown", "new", "dropped") if fork[word])
    optimizer = f"optimizer {fork['optimizer']['kept']} kept, {fork['optimizer']['new']} new"
    yield _fact("forked from", f"{fork['name']}@{fork['number']} (sha256 {fork['sha256'][:_SHORT]}), {fork['reads']}")
    yield _fact("", f"weights {fork['kept']} kept{', ' if counts else ''}{counts}; {optimizer}")


def _remarks(found: Inspection, manifest: Manifest, best: int | None) -> Iterator[str]:
    yield "the best" if manifest.number == best else ""
    fork = manifest.provenance.get("forked_from")
    yield "" if fork is None else f"a fork of {fork['name']}@{fork['number']}"
    yield f"pinned by {', '.join(pin.by for pin in found.pins)}" if found.pins else ""
    yield manifest.note or _why(found)


def _why(found: Inspection) -> str:
    return "; ".join(found.problems)


def _fact(label: str, text: str) -> str:
    return f"{label:<{_WIDTH - 2}}  {text}"  # a long name of a partition stands apart, too


def _or_none(parent: int | None) -> str:
    return "none" if parent is None else str(parent)


def in_sentences(facts: Mapping[str, Any]) -> Iterator[str]:
    """Give what a manifest says of the pretraining, in sentences."""
    validated = f", validated on {facts['validation_rows']:,}" if facts.get("validation_rows") else ""
    yield f"on {facts['rows']:,} rows of {facts['source']}, {facts['shards']} shards{validated}"
    yield f"epoch {facts['epoch']} of {facts['epochs']} learnt, {facts['steps']:,} steps"
    if facts.get("figures"):
        yield ", ".join(f"{name} {value:.4g}" for name, value in facts["figures"].items())
    if facts.get("set_aside"):
        yield "set aside " + ", ".join(f"{count:,} {reason}" for reason, count in facts["set_aside"].items())


def comparison_facts(found: Comparison) -> dict[str, Any]:
    """Return the whole comparison for a program."""
    return {
        "checkpoints": [lineage.found.number for lineage in found.lineages],
        "manifest": found.manifest,
        "made_with": found.made_with,
        "hyperparameters": found.hyperparameters,
        "history": found.history,
        "event_time": _pair_of(found, _event_time),
        "skips": _pair_of(found, _skips),
        "model": [_without_none(one) for one in found.model],
        "optimizer": [_without_none(one) for one in found.optimizer],
    }


def comparison_in_words(found: Comparison) -> Iterator[str]:
    """Give everything but the variables of the model, which are a table."""
    first, second = (lineage.found.number for lineage in found.lineages)
    yield _difference("checkpoints", f"{first} and {second}")
    for name, pair in found.manifest.items():
        yield _difference(name, _from_to(pair))
    for partition, facts in found.history.items():
        yield _difference(partition, ", ".join(f"{name} {_moved(pair)}" for name, pair in facts.items()))
    for label, read in (("event time", _event_time), ("skips", _skips)):
        pair = _pair_of(found, read)
        if pair[0] != pair[1]:
            yield _difference(label, _from_to((_listed(pair[0]), _listed(pair[1]))))
    for name, pair in {**found.made_with, **found.hyperparameters}.items():
        yield _difference(name, _from_to((_short(name, pair[0]), _short(name, pair[1]))))
    for one in found.optimizer:
        if one.values is not None and one.differing:
            yield _difference(one.name, _from_to(one.values))


def variable_rows(found: Comparison) -> list[list[str]]:
    """Return the variables of the model, one per row."""
    return [[one.name, _shapes(one), *_figures(one)] for one in found.model]


def comparison_summary(found: Comparison) -> str:
    """Return how many variables differ."""
    same = sum(one.differing == 0 for one in found.model)
    others = len(found.optimizer)
    still = sum(one.differing == 0 for one in found.optimizer)
    return (
        f"{same} of {len(found.model)} variables of the model are the same, and {still} of {others} of the optimizer's"
    )


def _figures(one: VariableDifference) -> list[str]:
    if one.differing is None:
        return ["", "", "only one has it" if None in one.shapes else "other shapes"]
    if one.largest is None or one.mean is None:
        return ["not finite", "not finite", f"{one.differing:,}"]
    return [f"{one.largest:.3g}", f"{one.mean:.3g}", f"{one.differing:,}"]


def _shapes(one: VariableDifference) -> str:
    shapes = [f"{shape} {dtype}" for shape, dtype in zip(one.shapes, one.dtypes, strict=True) if shape is not None]
    return " and ".join(dict.fromkeys(shapes))


def _pair_of(found: Comparison, read: Any) -> Pair:
    first, second = found.lineages
    return read(first), read(second)


def _event_time(lineage: CheckpointLineage) -> Mapping[str, str] | None:
    span = event_time_of(lineage.event_span)
    return None if span is None else span.model_dump()


def _skips(lineage: CheckpointLineage) -> list[dict[str, Any]]:
    views = skips_of(lineage.orders, lineage.partitions) or []
    return [view.model_dump(exclude_none=True) for view in views]


def _listed(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return " to ".join(value.values())
    if isinstance(value, Sequence):
        return ", ".join(f"{one['order']} ({one['passed']:,} of {one['offsets']:,} skipped)" for one in value)
    return None


def _from_to(pair: Pair) -> str:
    return " -> ".join("none" if value in (None, "") else str(value) for value in pair)


def _moved(pair: Pair) -> str:
    """Write a change as `120 -> 150 (+30)`."""
    before, after = ((value or 0) for value in pair)
    return f"{before:,} -> {after:,} ({after - before:+,})"


def _short(name: str, value: Any) -> Any:
    return value[:_SHORT] if name.endswith("sha256") and isinstance(value, str) else value


def _without_none(one: VariableDifference) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if value is not None}


def _difference(label: str, text: str) -> str:
    return f"{label:<{_WIDTH}}{text}" if len(label) < _WIDTH else f"{label}  {text}"
