"""Environment variables that begin as ours do, and name no setting. Pure.

A variable that spells a setting with `_` in place of `__` can mean nothing else, and is refused. Any other may belong
to another program, so it is ignored, with a warning. Kubernetes writes some for each service whose name begins with
millrace; these are ignored without one.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_origin

from pydantic import BaseModel

from millrace.app.settings.all_settings import NAME, settings_of
from millrace.app.settings.spelling import PREFIX, variable
from millrace.app.settings.yaml_file import Key

_READ_ELSEWHERE = frozenset(
    {
        "MILLRACE_CA_FILE",
        "MILLRACE_CLIENT_CERTIFICATE",
        "MILLRACE_CLIENT_KEY",
        "MILLRACE_FAILPOINTS",
        "MILLRACE_MAVEN_REPOSITORY",
        "MILLRACE_SUSPECTS",
        "MILLRACE_TIMES_BEGUN_AGAIN",
        "MILLRACE_TOKEN_FILE",
    }
)
_OF_KUBERNETES = re.compile(
    r"MILLRACE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_OF_THE_TESTS = re.compile(r"MILLRACE_TESTS?_\w+")
_SIMILAR = 0.8


@dataclass(frozen=True, slots=True)
class Strays:
    """Variables without `__` that name no setting."""

    misspelled: Mapping[str, str] = field(default_factory=dict)
    """Those that spell a setting with too few underscores, each with the right name."""
    ignored: Mapping[str, str | None] = field(default_factory=dict)
    """The others, each with the name of a similar setting's variable, or None."""


def strays_in(settings: type[BaseModel], names: Iterable[str]) -> Strays:
    """Sort variables that name no setting; those that others are known to write are left out."""
    keys = {"_".join(map(str, key)): key for key, _ in settings_of(settings) if NAME not in key}
    misspelled: dict[str, str] = {}
    ignored: dict[str, str | None] = {}
    for name in filter(_may_be_meant_for_us, names):
        typed = name[len(PREFIX) :].lower()
        if (key := keys.get(typed) or _below(settings, typed)) is not None:
            misspelled[name] = variable(key)
        else:
            near = difflib.get_close_matches(typed, keys, n=1, cutoff=_SIMILAR)
            ignored[name] = variable(keys[near[0]]) if near else None
    return Strays(misspelled, ignored)


def _may_be_meant_for_us(name: str) -> bool:
    name = name.upper()
    return name not in _READ_ELSEWHERE and not (_OF_KUBERNETES.fullmatch(name) or _OF_THE_TESTS.fullmatch(name))


def _below(settings: type[BaseModel], typed: str) -> Key | None:
    """Return the key of a name below a mapping whose keys are the user's own, as in model_args_buckets."""
    for key, info in settings_of(settings):
        origin, joined = get_origin(info.annotation), "_".join(map(str, key))
        if isinstance(origin, type) and issubclass(origin, Mapping) and typed.startswith(f"{joined}_"):
            return (*key, typed[len(joined) + 1 :])
    return None
