"""Settings that had another name: a config with the old one means the same, and a warning says the new one."""

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.app.settings.environment import Overrides
from millrace.app.settings.spelling import dotted
from millrace.app.settings.validation_errors import Places
from millrace.app.settings.yaml_file import Document, Key, SettingsError

RENAMED: Mapping[Key, Key] = {("windows", "stride"): ("windows", "every")}
"""By section and old name, the same section and the new name."""


def take_new_names(document: Document, overrides: Overrides) -> Iterator[str]:
    """Put the new names into file and environment in place of the old ones; yield a warning for each setting.

    Raise SettingsError where one of them has both names.
    """
    for old, new in RENAMED.items():
        section, (_, old_name), (_, new_name) = old[:1], old, new
        origin = Places(document, overrides).origin(old)
        pairs: tuple[tuple[Any, Any, Any], ...] = (
            (document.values.get(str(section[0])), old_name, new_name),
            (overrides.values.get(section), old_name, new_name),
            (overrides.values, old, new),
            (document.lines, old, new),
            (overrides.names, old, new),
        )
        found = [
            (holder, before, now) for holder, before, now in pairs if isinstance(holder, dict) and before in holder
        ]
        for holder, before, now in found:
            if now in holder:
                raise SettingsError(
                    [f"{origin}: {dotted(old)} is now called {dotted(new)}, which is there too; leave {old_name} out"]
                )
            holder[now] = holder.pop(before)
        if found:
            yield f"{origin}: {dotted(old)} is now called {dotted(new)}, and means the same; write the new name"
