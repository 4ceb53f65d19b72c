"""`millrace init`: drafts a config and a model for a topic from some of its records."""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from millrace.app.cli.notes import note
from millrace.app.settings import load_kafka, load_registry
from millrace.app.settings.spelling import flow
from millrace.app.tools.init.column_roles import (
    ChosenRoles,
    Roles,
    cast,
    deletes_and_tombstones,
    envelope_of,
    label_by_name,
    likely_labels,
    named_like_a_label,
    sequences_of,
    without_envelope,
)
from millrace.app.tools.init.columns import ColumnLook, columns_of
from millrace.app.tools.init.draft_files import (
    CONFIG,
    Draft,
    name_of,
    refuse_to_overwrite,
    set_aside,
    verdicts_of,
    write,
)
from millrace.app.tools.init.drafted_config import DraftTarget, config_text
from millrace.app.tools.init.drafted_model import model_text
from millrace.app.tools.init.kinds import kinds_of
from millrace.app.tools.init.later_labels import later_labels
from millrace.app.tools.init.questions import asked_parts
from millrace.app.tools.init.topic_sample import PLACES, look_at, sampled_records, schema_hints
from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import Look


def init(
    topic: Annotated[str, typer.Option(help="The topic to learn from.")],
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            help="Kafka's address: host:port, several separated by commas; default: the environment, or 127.0.0.1:9092."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="The field to predict; without it, init asks in a terminal, and elsewhere takes the one field that is "
            "named as labels are: label, target, y, clicked …"
        ),
    ] = None,
    labels_topic: Annotated[
        str | None,
        typer.Option(help="The topic of the labels, if they come later; --label is a field of its records then."),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="The field with the weight of a record.")] = None,
    event_time: Annotated[str | None, typer.Option(help="The field with the event time.")] = None,
    features: Annotated[
        str | None, typer.Option(help="The fields to learn from, separated by commas; default: all.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            help="The schema registry's URL, several of one registry separated by commas; default: the environment, "
            "MILLRACE_RECORDS__REGISTRY__URL."
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="The schema that wrote the records: an .avsc of Avro, a .proto or a descriptor set of Protobuf."
        ),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Which message of the Protobuf schema the records are.")] = None,
    columns: Annotated[str | None, typer.Option(help="The names of CSV columns, separated by commas.")] = None,
    name: Annotated[str | None, typer.Option(help="The name in the config; default: the topic's name.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite millrace.yaml and model.py.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON; nothing is asked.")] = False,
) -> None:
    """Read some of a topic's records, and write a millrace.yaml and a model.py that learn from it.

    Nothing else is written, and no offset is committed. For TLS or a password, set the settings in the environment, as
    in MILLRACE_KAFKA__SECURITY_PROTOCOL=SSL; options override them.
    Example: millrace init --topic clicks --label clicked --out clicks
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log becomes our one line
    refuse_to_overwrite(out, force=force)
    kafka = load_kafka(out, topic, _split(bootstrap_servers))
    hints = schema_hints(load_registry(out, registry), schema, message, out)
    # Labels are joined with the records of their time, so both topics are read from their beginnings.
    places = PLACES if labels_topic is None else 1
    found = sampled_records(kafka, places=places)
    look = look_at(found.values, _split(columns) or (), found.beside, hints)
    later = None
    if labels_topic is not None:
        of_labels = sampled_records(load_kafka(out, labels_topic, _split(bootstrap_servers)), places=places)
        their_look = look_at(of_labels.values, (), of_labels.beside, hints)
        later, look = later_labels(labels_topic, (found, look), (of_labels, their_look), label)
        label = later.label
    wanted = ChosenRoles(label=label, weight=weight, event_time=event_time, features=_split(features))
    look, roles = _cast(look, wanted, found.tombstones, ask=not as_json)
    sequences = sequences_of(look.rows, roles, found.partitions)
    place = DraftTarget(
        name=name or name_of(topic),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        held=found.held,
        records_per_s=found.records_per_s,
    )
    config, model = config_text(place, look, roles, sequences, later), model_text(topic, roles, sequences)
    write(out, Draft(config=config, model=model))
    report = {
        "config": str(out / CONFIG),
        "format": look.format,
        "records": look.looked_at,
        "label": roles.label.source,
        "task": roles.task.value,
        "features": [column.source for column in roles.features],
        "left_out": {column.source: column.why for column in roles.left_out},
        "windows": None if sequences is None or not sequences.whole else sequences.key.source,
        "labels": None if later is None else {"topic": later.topic, "key": later.key, "within": later.within},
        "where": look.section.get("where"),
        "notes": list(look.notes),
        "set_aside": set_aside(verdicts_of(out / CONFIG, found.chunks)),
    }
    typer.echo(json.dumps(report, indent=2) if as_json else _in_words(report))


def _split(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _cast(look: Look, wanted: ChosenRoles, tombstones: int, *, ask: bool) -> tuple[Look, Roles]:
    """Give every column its role, by the records that have the label: the others are set aside anyway."""
    seen = columns_of(look.rows, look.nullable)
    if wanted.label is None:
        wanted = _asked(seen, wanted, ask=ask)
    envelope = envelope_of(seen)
    if envelope is not None:
        told = deletes_and_tombstones(look.rows, envelope, look.looked_at, tombstones)
        look = replace(look, notes=(*look.notes, told))
    if (found := kinds_of(look.rows, str(wanted.label))) is not None:
        source, values = found
        where = {source: values[0] if len(values) == 1 else values}
        hint = f"only these have {wanted.label}; the others are filtered"
        look = replace(look, section={**look.section, "where": where}, hints={**look.hints, "where": hint})
    labelled = [row for row in look.rows if row.get(str(wanted.label)) is not None]
    columns = columns_of(labelled, look.nullable) if labelled else seen
    return look, cast(columns if envelope is None else without_envelope(columns, envelope), wanted)


def _asked(seen: "Sequence[ColumnLook]", wanted: "ChosenRoles", *, ask: bool) -> "ChosenRoles":
    """Ask in the terminal for the roles that the options leave open.

    Without a terminal the label is the one field that is named as labels are; ConfigError if there is none.
    """
    labels = likely_labels(seen)
    if not labels:
        raise ConfigError("no field can be predicted; if labels lie in another topic, name that by --labels-topic")
    if not (ask and sys.stdin.isatty()):
        if (label := label_by_name(seen)) is not None:
            note(f"took {label!r} for the field to predict, by its name; --label names another")
            return replace(wanted, label=label)
        looks_like_one = any(named_like_a_label(column) for column in seen if column.source in labels)
        none = (
            ""
            if looks_like_one
            else "; none is named as labels are: if it lies in another topic, name that by --labels-topic"
        )
        raise ConfigError(f"--label is missing: name the field to predict, one of {', '.join(labels)}{none}")
    return asked_parts(seen, wanted)


def _in_words(report: dict[str, object]) -> str:
    tasks = {"binary": "yes or no", "classes": "one of several classes", "named_classes": "one of several classes"}
    left_out = report["left_out"]
    assert isinstance(left_out, dict)
    features = report["features"]
    assert isinstance(features, list)
    config, notes = report["config"], report["notes"]
    assert isinstance(notes, list)
    key = report["windows"]
    windows = [f"Learns from the last records of each {key} (windows)."] if key else []
    where = [f"Learns from some kinds of records alone (where: {flow(report['where'])})."] if report["where"] else []
    later = report["labels"]
    assert later is None or isinstance(later, dict)
    labels = (
        [] if later is None else [f"Labels come from {later['topic']}, by {later['key'][0]}, within {later['within']}."]
    )
    set_aside = report["set_aside"]
    assert isinstance(set_aside, dict)
    refused = ", ".join(f"{n:,} {why}" for why, n in set_aside.items())
    decodes = f"Of them these do not decode by the draft: {refused}." if refused else "All of them decode by the draft."
    # A line for each reason, with the fields that are left out for it.
    by_reason: dict[str, list[str]] = {}
    for source, why in left_out.items():
        by_reason.setdefault(why, []).append(source)
    return "\n".join(
        [
            f"Looked at {report['records']:,} records: {report['format']}.",
            f"Learns {report['label']} ({tasks.get(str(report['task']), 'a number')}) from {', '.join(features)}.",
            decodes,
            *[f"Leaves out {', '.join(sources)}{f': {why}' if why else ''}." for why, sources in by_reason.items()],
            *labels,
            *windows,
            *where,
            *(f"{note[0].upper()}{note[1:]}." for note in notes),
            f"Wrote {config} and model.py beside it. Next:",
            f"  millrace validate -c {config}",
            f"  millrace run -c {config}",
        ]
    )
