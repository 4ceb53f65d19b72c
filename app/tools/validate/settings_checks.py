"""The checks of what settings name beside Kafka, model and checkpoints: tokens, archive, certificate, exports, group.

They load no TensorFlow, read no records and write nothing.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.app.api.authorization import is_loopback
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.api.tokens import Tokens
from millrace.app.service.senders import SENDERS
from millrace.app.settings import Settings
from millrace.app.settings.secret_files import exposure
from millrace.app.settings.sections.api import TlsSettings
from millrace.app.tools.validate.check import CheckResult, fail, ok, warn
from millrace.consumers.archive.archive_account import by_partition
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.shards import listing
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.suggested_command import suggested_command
from millrace.training.model.export.writers import require_all


def tokens_check(settings: Settings) -> CheckResult:
    """Read the folder as a start does; without one, check who can reach the listener."""
    api = settings.api
    if api.tokens_dir is None:
        loopback = is_loopback(api.host)
        if loopback:
            return ok("tokens", f"none; {api.listen} takes commands from this machine only")
        return warn(
            "tokens",
            f"none, and {api.listen} can be reached from other machines, so no one may pause, save or rewind: set "
            "api.tokens_dir to a folder with one file a token, or api.listen to a loopback address",
        )
    try:
        owners = Tokens(api.tokens_dir).owners()
    except MillraceError as error:
        return fail("tokens", error)
    if exposed := [complaint for owner in owners if (complaint := exposure(api.tokens_dir / owner)) is not None]:
        return warn("tokens", f"api.tokens_dir: {'; '.join(exposed)}")
    return ok("tokens", f"{len(owners)} in {api.tokens_dir}; may send commands: {', '.join(owners)}")


def read_tokens_check(folder: Path) -> CheckResult:
    """Read the folder of tokens for reading as a start does."""
    try:
        owners = Tokens(folder, "api.read_tokens_dir").owners()
    except MillraceError as error:
        return fail("read tokens", error)
    if exposed := [complaint for owner in owners if (complaint := exposure(folder / owner)) is not None]:
        return warn("read tokens", f"api.read_tokens_dir: {'; '.join(exposed)}")
    return ok("read tokens", f"{len(owners)} in {folder}; may read: {', '.join(owners)}")


def archive_check(place: Place) -> CheckResult:
    """Check the archive; where its folder is not there yet, that it can be made."""
    name = "archive"
    if isinstance(place, Path) and not place.exists():
        parent = next(path for path in place.parents if path.exists())
        if os.access(parent, os.W_OK):
            return ok(name, f"{place} is not there yet; `{suggested_command('archive')}` makes it")
        return fail(name, ConfigError(f"archive.path: {place} is not there, and {parent} cannot be written"))
    try:
        shards = listing(place)
    except MillraceError as error:
        return fail(name, error)
    lost = sum(gap.offsets for archived in by_partition(shards) for gap in archived.gaps)
    found = f"{place} holds {len(shards):,} shards with {sum(shard.records for shard in shards):,} records"
    return warn(name, f"{found}; {lost:,} offsets are in none of them") if lost else ok(name, found)


def certificate_check(tls: TlsSettings) -> CheckResult:
    """Load the certificate, its key and the authorities of clients as a start does."""
    try:
        ended = ServerCertificate(tls).ended()
    except MillraceError as error:
        return fail("certificate", error)
    if ended is not None:
        return warn("certificate", ended)
    if (exposed := exposure(tls.key)) is not None:
        return warn("certificate", f"api.tls.key: {exposed}")
    if tls.client_ca is None:
        return ok("certificate", f"{tls.certificate}; clients are not asked for one")
    return ok("certificate", f"{tls.certificate}; of clients one is {tls.client_certificate}")


def sender_checks(settings: Settings) -> Iterator[CheckResult]:
    """Check what tells a server of others how the service does, as a start does; nothing is sent."""
    for sender in SENDERS:
        try:
            ready = sender.ready(settings)
        except MillraceError as error:
            yield fail(sender.name, error)
            continue
        if ready is not None and ready.warning is not None:
            yield warn(sender.name, ready.warning)
        elif ready is not None:
            yield ok(sender.name, f"{ready.what}; nothing was sent to try it")


def export_check(writers: Mapping[str, str]) -> CheckResult:
    """Check that exports of these formats can be made on this machine: by name, where the writer is found."""
    try:
        require_all(writers.values())
    except ConfigError as error:
        return fail("export", error)
    return ok("export", f"what versions with {' and '.join(writers)} need is installed")


def group_check(settings: Settings, host: str | None = None) -> CheckResult:
    """Check what `scale` says of a group of several workers; `host` None is this machine's name."""
    scale = settings.scale
    twice = [address for address, times in Counter(scale.everyone).items() if times > 1]
    if twice:
        return fail(
            "group",
            ConfigError(f"scale.addresses: {twice[0]} is there more than once; each worker needs one of its own"),
        )
    rows = settings.training.numbers.batch_size // scale.workers
    found = f"{scale.workers} workers, each with {rows} rows of every batch, meet at {', '.join(scale.everyone)}"
    try:
        index = scale.own_index(host)
    except ValueError as error:
        return warn("group", f"{found}; a start on this host would be refused, as scale.index is not known: {error}")
    return ok("group", f"{found}; this host is {'the chief' if index == 0 else f'worker {index}'}")
