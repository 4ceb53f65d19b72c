"""The checks of the tokens: who may send commands and read, and whether a start can read the folders."""

from pathlib import Path

from millrace.app.api.authorization import is_loopback
from millrace.app.api.tokens import Tokens
from millrace.app.settings import Settings
from millrace.app.settings.file_access import exposure
from millrace.app.tools.validate.check import CheckResult, fail, ok, warn
from millrace.consumers.errors import MillraceError

_NAME = "tokens"


def tokens_check(settings: Settings) -> CheckResult:
    """Read the folder as a start does; without one, check who can reach the listener."""
    api = settings.api
    if api.tokens_dir is None:
        return _without(api.listen, loopback=is_loopback(api.host))
    try:
        owners = Tokens(api.tokens_dir).owners()
    except MillraceError as error:
        return fail(_NAME, error)
    if exposed := [complaint for owner in owners if (complaint := exposure(api.tokens_dir / owner)) is not None]:
        return warn(_NAME, f"api.tokens_dir: {'; '.join(exposed)}")
    return ok(_NAME, f"{len(owners)} in {api.tokens_dir}; may send commands: {', '.join(owners)}")


def read_tokens_check(folder: Path) -> CheckResult:
    """Read the folder of tokens for reading as a start does."""
    try:
        owners = Tokens(folder, "api.read_tokens_dir").owners()
    except MillraceError as error:
        return fail("read tokens", error)
    if exposed := [complaint for owner in owners if (complaint := exposure(folder / owner)) is not None]:
        return warn("read tokens", f"api.read_tokens_dir: {'; '.join(exposed)}")
    return ok("read tokens", f"{len(owners)} in {folder}; may read: {', '.join(owners)}")


def _without(listen: str, *, loopback: bool) -> CheckResult:
    if loopback:
        return ok(_NAME, f"none; {listen} takes commands from this machine only")
    return warn(
        _NAME,
        f"none, and {listen} can be reached from other machines, so no one may pause, save or rewind: set "
        "api.tokens_dir to a folder with one file a token, or api.listen to a loopback address",
    )
