"""Where the settings say that a model's exports are. Loads no TensorFlow."""

from pathlib import Path

from millrace.app.settings import Settings
from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.exports.version_folder import VersionFolder


def folder_of(settings: Settings, path: Path | None = None) -> VersionFolder:
    """Return the folder of the model's exports; ConfigError where no setting names one."""
    path = path or settings.export.path
    if path is None:
        raise ConfigError(
            "export.path: it is not set; name the folder that those who serve read, as in ./exports, or write --to"
        )
    return VersionFolder(path / settings.name)
