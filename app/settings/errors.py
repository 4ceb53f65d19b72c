"""What is wrong with the settings, all of it at once."""

from collections.abc import Sequence

from millrace.consumers.errors import ConfigError


class SettingsError(ConfigError):
    """Every problem of a config file and its environment, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
