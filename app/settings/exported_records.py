"""What the records of an exported model are, in a folder of its version, so that a server decodes as the trainer did.

Pure but for the files. The folder is part of a version, whose manifest has the hash of each file:

    records/records.json     {"format": 1, "registry": whether records name schemas of one,
                             "windows": whether a row is a sequence, "records": the section of the settings}
    records/schema.avsc      the schema of records.avro.schema_file
    records/messages.pb      the descriptor set of records.protobuf.descriptor, compiled
    records/NAME.py          the file of a format of the user's

Neither the address of a registry nor any secret is in it: the server has its own. Who reads it takes files of this
folder alone: the file of a format is run, and only the files of a version are the ones that its manifest has hashes of.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from millrace.app.settings.root import Settings
from millrace.app.settings.sections.records import RecordsSettings, own_settings, to_format
from millrace.app.settings.sections.registry import RegistrySettings
from millrace.consumers.errors import ConfigError
from millrace.consumers.section import FOLDER as AGAINST
from millrace.consumers.user_class import UserClass
from millrace.pipelines.formats import every_format
from millrace.training.model.setup.model_code import beside_sha256

FOLDER = "records"
_FILE = "records.json"
_FORMAT = 1
_READ_BY_SCHEMA = {form.name for form in every_format() if form.is_read_by_schema}
_NOT_OF_THE_RECORDS = {"dead_letters", "registry", "slices", "where"}


def write_exported_records(settings: Settings, version: Path) -> None:
    """Write what the settings say of records into the folder of a version."""
    records, folder = settings.records, version / FOLDER
    folder.mkdir()
    section = records.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_OF_THE_RECORDS)
    form = to_format(records)
    if form.section is not None and (carried := form.carried(own_settings(records), folder)):
        section[form.section] |= carried
    if isinstance(records.format, UserClass):
        file = records.format.file
        if beside := beside_sha256(file):
            raise ConfigError(
                f"records.format: {file.name} imports {', '.join(beside)} from beside it, and an export carries one "
                "file; put all into it"
            )
        shutil.copyfile(file, folder / file.name)
        section["format"] = f"{file.name}:{records.format.name}"
    body = {
        "format": _FORMAT,
        "registry": records.registry is not None,
        "windows": any(one.used and one.other_columns for _, one, _ in settings.shapings()),
        "records": section,
    }
    (folder / _FILE).write_text(json.dumps(body, indent=1) + "\n", "utf-8")


def read_exported_records(version: Path, registry: RegistrySettings | None) -> tuple[RecordsSettings, bool]:
    """Return the section of the settings that a version was exported with, and whether records name their schema.

    `registry` is the reader's own, and only needed for formats whose records are read by their schema. Raises
    ConfigError, whose text says why records of this version cannot be decoded, and what to do.
    """
    folder = version / FOLDER
    try:
        body: dict[str, Any] = json.loads((folder / _FILE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            "this version was exported without what its records are, by an earlier millrace or by other means; export "
            "a checkpoint again"
        ) from None
    if body["format"] != _FORMAT:
        raise ConfigError("a later millrace has exported this version; serve it with that one")
    if body["windows"]:
        raise ConfigError(
            "the model learns sequences (windows), and a request holds none of the records before; send the sequences "
            "as features"
        )
    section = body["records"]
    if foreign := sorted(_NOT_OF_THE_RECORDS & section.keys()):
        raise ConfigError(f"its {_FILE} has {foreign[0]}, which no export writes; export a checkpoint again")
    if body["registry"] and section.get("format") in _READ_BY_SCHEMA:
        if registry is None:
            raise ConfigError("its records name schemas of a registry; write records.registry in the server's config")
        section = {**section, "registry": registry.model_dump(mode="json")}
    records = RecordsSettings.model_validate(section, context={AGAINST: folder})
    if isinstance(records.format, UserClass):
        named = {records.format.text: records.format.file}
    else:
        own = section.get(to_format(records).section, {})
        named = {own[key]: file for key, file in own_settings(records) or () if isinstance(file, Path)}
    for text, file in named.items():
        if file != folder.absolute() / file.name:
            raise ConfigError(
                f"its {_FILE} names {text}, which is no file beside it; a server reads and runs files of the version "
                "alone: export a checkpoint again"
            )
    return records, bool(body["registry"])
