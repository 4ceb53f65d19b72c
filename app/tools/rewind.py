"""Rewinding from the command line: by the trainer where one runs, else here, with a trainer's rights.

A rewind without a trainer takes the folder for a moment, as a trainer would, so the two exclude each other; the next
start finds the rewind as the newest checkpoint. Kafka is asked which records it still has; where it does not answer
within some seconds, the rewind is done without knowing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from millrace.app.api.checkpoint_reads import just_published
from millrace.app.monitoring.command_models import RewindPlanAnswer
from millrace.app.monitoring.lineage_view import beginnings_of, plan_fields
from millrace.app.service.checkpoint_policies import remove_some, store_options
from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.tools.service_client import NO_FILES, Remote, TlsFiles, local_service
from millrace.consumers.errors import ConfigError, MillraceError, UnreachableError
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import FolderLease, holder_of
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import FolderBusyError
from millrace.training.history.rewind import plan_rewind, present_on_disk, publish_rewind
from millrace.training.history.rewind_request import (
    Destination,
    Numbered,
    RewindRequest,
    parse_destination,
    parse_skips,
)

_WAIT_S = 600
CONNECT_S = 5.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRewind:
    """A rewind as it was typed."""

    to: str
    skip: Sequence[str] = ()
    unskip: Sequence[str] = ()
    reason: str | None = None
    dry_run: bool = False

    def body(self, destination: Destination) -> dict[str, Any]:
        """Return the body for `POST /rewind`. A key that an older trainer may not know is left out unless needed."""
        to = destination.number if isinstance(destination, Numbered) else self.to
        body: dict[str, Any] = {"to": to, "skip": list(self.skip), "reason": self.reason, "dry_run": self.dry_run}
        return {**body, "unskip": list(self.unskip)} if self.unskip else body


def send_rewind(remote: Remote, order: TypedRewind) -> Mapping[str, Any]:
    """Send the rewind to a service whose folder is not on this machine; return the answer."""
    destination = parse_destination(order.to, now_s=time.time())
    parse_skips(order.skip, order.reason)
    return _sent(remote, order.body(destination))


def rewind_or_send(
    settings: Settings, order: TypedRewind, token: str | None = None, files: TlsFiles = NO_FILES
) -> Mapping[str, Any]:
    """Do the rewind, or send it to the trainer that runs; return an answer in the shape of `POST /rewind`."""
    folder = Folder(settings.checkpoints.path / settings.name)
    destination = parse_destination(order.to, now_s=time.time())
    skips = parse_skips(order.skip, order.reason)
    if (holder := holder_of(folder)) is not None:
        try:
            return _sent(local_service(settings, token, files), order.body(destination))
        except (ConfigError, UnreachableError) as error:
            raise type(error)(
                f"{holder} runs here; set MILLRACE_API__LISTEN to where it answers, or stop it first: {error}"
            ) from error
    request = RewindRequest(to=destination, skips=skips, unskip=order.unskip, by="command line", note=order.reason)
    store, numbers = CheckpointStore(folder), folder.numbers()
    present = present_on_disk(store)
    plan = plan_rewind(store, request, present).with_earliest(_beginnings(settings))
    policy = settings.kafka.out_of_range
    if order.dry_run:
        # The plan as the answer of `POST /rewind` holds it, but for its stamp.
        fields = plan_fields(plan, policy=policy, per_s=None)
        answer = RewindPlanAnswer(as_of="", name="", version="", **fields)
        return answer.model_dump(exclude_none=True, exclude={"as_of", "name", "version"})
    plan.refuse_loss(policy)
    lease = FolderLease.acquire(folder, f"millrace rewind {settings.name}", make_room=partial(remove_some, settings))
    try:
        if folder.numbers() != numbers:  # the plan would drop what another rewind has done meanwhile
            raise FolderBusyError(f"{folder.root} got another checkpoint while this was planned: run the command again")
        store = CheckpointStore(folder, lease, store_options(settings, folder))
        manifest = publish_rewind(store, plan.prepared, incarnation=present.incarnation)
    finally:
        lease.release()
    return {"checkpoint": just_published(manifest).model_dump(exclude_none=True)}


def _beginnings(settings: Settings) -> Mapping[Partition, int] | None:
    """Return the first offsets that Kafka still has; None where it does not answer soon."""
    try:
        source = KafkaSource(kafka_options(settings.kafka), kafka_history(settings))
        source.start(CONNECT_S)
    except MillraceError:
        return None
    try:
        return beginnings_of(source)
    finally:
        source.stop(_STOP_S)


def _sent(remote: Remote, body: Mapping[str, Any]) -> Mapping[str, Any]:
    answer = remote.command(f"/rewind?wait={_WAIT_S}s", body, within_s=_WAIT_S + 30)
    if "operation" in answer:
        raise MillraceError(
            f"the rewind takes longer than {_WAIT_S} s; GET /operations/{answer['operation']['id']} shows its progress"
        )
    return answer
