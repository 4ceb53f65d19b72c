"""The matrix of faults: which rows there are, and how many of them a proof has to show."""

from collections.abc import Mapping

ROWS: Mapping[int, str] = {
    1: "SIGKILL at random times and at every failpoint",
    2: "SIGKILL in each window of a save and its commit",
    3: "killed during start and restore, again and again",
    4: "killed during and after a rewind",
    5: "SIGTERM in a call, in a save, in a restore, while tracing, twice",
    6: "broker restarted, cleanly and killed",
    7: "broker away",
    8: "slow, resetting, half-open network",
    9: "a stranger in our group",
    10: "a stopped trainer that was passed goes on",
    11: "two trainers on one folder",
    12: "partition added; hot and empty partitions",
    13: "topic deleted; deleted and created again",
    14: "offset out of range",
    15: "compacted and transactional topics",
    16: "disk full during a save",
    17: "newest checkpoint damaged",
    18: "all checkpoints damaged",
    19: "checkpoint of another model; other hyperparameters",
    20: "a step that raises",
    21: "a record that kills the process",
    22: "slow trainer, hung trainer, long trace",
    23: "stopped while waiting on an empty queue",
    27: "API flood; half-open connections; malformed bodies; traversal in names; orders without a token",
    28: "secrets and records' values, through failures",
    29: "a full volume that restarts",
    30: "NaN in the weights, past the optimizer",
    31: "a worker of a group killed, stopped, drained; the chief; all",
}
