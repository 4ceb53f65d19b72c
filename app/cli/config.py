"""`millrace config`: shows the effective settings, and the schema of a config file."""

import json

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.notes import note
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.settings.loading import leaves
from millrace.app.settings.reference import json_schema
from millrace.app.settings.secret_files import masked
from millrace.app.settings.spelling import dotted, flow

config = typer.Typer(help="Show the effective settings, or the JSON Schema of a config file.", no_args_is_help=True)


@config.command()
def show(
    file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Print every effective value with its origin, secrets masked.

    Example: millrace config show -c clicks.yaml
    """
    found = loaded(file)
    values = masked(found.settings.model_dump(mode="json"))
    if as_json:
        print_json({"settings": values, "origins": dict(found.origins)})
        return
    origins = dict(found.origins)
    rows = [(dotted(key), flow(value)) for key, value in leaves(values)]
    widths = [min(max(len(row[column]) for row in rows), 44) for column in (0, 1)]
    for line in [f"{key:<{widths[0]}}  {value:<{widths[1]}}  {_origin(key, origins)}" for key, value in rows]:
        typer.echo(line)
    from millrace.app.tools.validate.settings_checks import tokens_check  # noqa: PLC0415 - loads the HTTP side

    if found.settings.api.tokens_dir is None and (check := tokens_check(found.settings)).outcome == "warn":
        note(f"warning: {check.name}: {check.detail}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of a config file, for editors.

    Example: millrace config schema > millrace.schema.json
    """
    typer.echo(json.dumps(json_schema(), indent=2))


def _origin(key: str, origins: dict[str, str]) -> str:
    """Return a key's origin; for a key that stands for several, masked together, the first one's."""
    return origins.get(key) or next((origin for name, origin in origins.items() if name.startswith(key)), "default")
