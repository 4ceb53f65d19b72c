"""Which cases of the service there are, how long each takes, and which of their results are figures.

A case is a script of `bench/cases` that hosts the service, measures, and prints `{"figures": …, "details": …}`. Some
need a topic that holds enough for half a minute at full speed; how much that is comes from the rates of the rounds
before.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPARE = 1.3
"""How much more a topic holds than its case should need."""
AROUND_S = 18
"""What a case learns beyond its own seconds: while it settles, and while it is stopped."""
UNKNOWN_RATES = {"json": 300_000.0, "raw": 700_000.0}


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Seconds, and counts, of each case."""

    off_cpu_s: int = 10
    freshness_s: int = 15
    full_speed_raw_s: int = 15
    full_speed_json_s: int = 15
    flood_s: int = 10
    flood_records: int = 2_500_000
    siege_s: int = 12
    saves: int = 12
    save_every_s: int = 3
    looks: int = 60
    balance_rows: int = 2_000_000
    windows_rounds: int = 5
    formats_rounds: int = 15
    eyes_pairs: int = 60
    poisoned_records: int = 65_536
    poisoned_rounds: int = 5
    poisoned_stream_records: int = 2_000_000
    poisoned_stream_rounds: int = 4
    before_turns: int = 3
    reservoir_rows: int = 131_072
    planted_fields: int = 200
    planted_seeds: int = 20
    planted_weeks: int = 1
    page_fields: int = 200
    page_rounds: int = 7
    recent_rounds: int = 40
    recent_records: int = 40_000
    joined_streams_records: int = 600_000
    joined_streams_rounds: int = 3
    waiting_labels: int = 5_000_000
    on_arrival_s: float = 20.0
    forked_records: int = 1_000_000
    decode_records: int = 131_072
    decode_rounds: int = 7
    memory_s: int = 600
    starts: int = 3
    archive_rounds: int = 5
    group_s: int = 5
    group_restarts: int = 3
    group_ways: str = "1,2"
    pretrain_rows: int = 131_072
    pretrain_light_rows: int = 1_048_576
    pretrain_rounds: int = 2
    data_service_rows: int = 65_536
    data_service_rounds: int = 2
    serve_swaps: int = 50
    served_keys: int = 1_000_000
    served_turns: int = 6
    exports: int = 3
    exports_plain_s: float = 8.0
    at_once: int = 1
    """How many run beside each other: more than one only where nobody reads the figures."""
    left_out: tuple[str, ...] = ("memory",)
    """Cases that run only where they are named: they take long, or their script runs under another name too."""


UNCLOCKED = {
    *(
        "formats",
        "poisoned",
        "balance",
        "windows",
        "reservoir",
        "where",
        "joined",
        "decode-example",
        "decode-avro",
        "decode-protobuf",
    ),
    *("forked", "foreign", "recent"),
}
FULL = Lengths()
SOAK = Lengths(serve_swaps=100, group_ways="1,2,2_sharing,3")
QUICK = Lengths(
    off_cpu_s=3,
    freshness_s=4,
    full_speed_raw_s=4,
    full_speed_json_s=4,
    flood_s=3,
    flood_records=100_000,
    siege_s=3,
    saves=2,
    save_every_s=2,
    looks=10,
    balance_rows=16_384,
    windows_rounds=1,
    formats_rounds=2,
    eyes_pairs=1,
    poisoned_records=8_192,
    poisoned_rounds=1,
    joined_streams_records=50_000,
    joined_streams_rounds=1,
    waiting_labels=50_000,
    on_arrival_s=3.0,
    poisoned_stream_records=400_000,
    poisoned_stream_rounds=1,
    before_turns=1,
    reservoir_rows=16_384,
    planted_fields=16,
    planted_seeds=1,
    planted_weeks=0,
    page_fields=16,
    page_rounds=1,
    recent_rounds=4,
    recent_records=4_000,
    forked_records=65_536,
    decode_records=16_384,
    decode_rounds=1,
    memory_s=6,
    starts=1,
    archive_rounds=2,
    group_s=3,
    group_restarts=1,
    pretrain_rows=32_768,
    pretrain_light_rows=131_072,
    pretrain_rounds=1,
    data_service_rows=8_192,
    data_service_rounds=1,
    serve_swaps=12,
    served_keys=20_000,
    served_turns=1,
    exports=1,
    exports_plain_s=3.0,
    at_once=4,
    left_out=("freshness-slow", "full-speed-json"),
)


@dataclass(frozen=True)
class Stored:
    """A topic that is filled before its case runs."""

    topic: str
    form: str
    records: int

    def options(self, bootstrap: str) -> dict[str, Any]:
        """What `stored.py` is told."""
        return {"bootstrap": bootstrap, "topic": self.topic, "format": self.form, "records": self.records}


@dataclass(frozen=True)
class ServiceCase:
    """A script, what it is told, and what becomes of its results: by name in the report, the key in what it printed."""

    name: str
    script: str
    options: Mapping[str, Any]
    figures: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def unclocked(self) -> bool:
        """Whether no figure of it is by the clock, so that another such case may run beside it."""
        return self.name in UNCLOCKED


def stored(lengths: Lengths, rates: Mapping[str, float]) -> dict[str, Stored]:
    """The topics to fill, by format; `rates` are records a second at full speed, where they are known."""
    # What learns at a slower pace than full speed needs fewer: the models of `off-cpu-step` and `exporting`.
    seconds = {"raw": lengths.full_speed_raw_s, "json": lengths.full_speed_json_s}
    return {
        form: Stored(
            f"bench-long-{form}", form, round(SPARE * (lasts + AROUND_S) * rates.get(form, UNKNOWN_RATES[form]))
        )
        for form, lasts in seconds.items()
    }


def cases_of(lengths: Lengths, bootstrap: str, before: Path | None = None) -> list[ServiceCase]:
    """All there are; those beside an earlier tree where there is one."""
    where = {"bootstrap": bootstrap}
    on = {form: {**where, "topic": f"bench-long-{form}"} for form in ("json", "raw")}
    fast = {"livez_p99_ms": "livez_p99_ms", "loop_lag_p99_ms": "loop_lag_p99_ms"}
    beside = ServiceCase(
        "before",
        "before.py",
        {"before": before, "turns": lengths.before_turns},
        {"nested_over_before": "nested_over_before", "avro_over_before": "avro_over_before"},
    )
    return [
        *([] if before is None else [beside]),
        ServiceCase(
            "flood",
            "flood.py",
            {**where, "records": lengths.flood_records, "seconds": lengths.flood_s},
            details={
                "flood_freshness_rise_ms": "flood_freshness_rise_ms",
                "flood_lag_growth_share": "flood_lag_growth_share",
            },
        ),
        ServiceCase(
            "siege",
            "siege.py",
            {**where, "seconds": lengths.siege_s},
            {"siege_probe_p99_ms": "siege_probe_p99_ms"},
            {"siege_main_probe_p99_ms": "siege_main_probe_p99_ms"},
        ),
        ServiceCase(
            "checkpoint-stall",
            "checkpoint_stall.py",
            {**on["raw"], "saves": lengths.saves, "every-s": lengths.save_every_s},
            {"checkpoint_stall_p99_ms": "stall_p99_ms"},
            {
                "checkpoint_cost_share": "cost_share",
                "checkpoint_next_call_p50_ms": "next_call_p50_ms",
                "checkpoint_noise_p99_ms": "noise_p99_ms",
            },
        ),
        ServiceCase(
            "nan-look",
            "nan_look.py",
            {"looks": lengths.looks},
            {"nan_look_cost": "nan_look_cost"},
            {"nan_look_p50_ms": "look_p50_ms"},
        ),
        ServiceCase(
            "decode-cores",
            "decode_cores.py",
            {"rounds": lengths.formats_rounds // 5 or 1},
            {},
            {"decode_processes_over_threads": "processes_over_threads"},
        ),
        ServiceCase(
            "formats",
            "formats.py",
            {"rounds": lengths.formats_rounds},
            {name: name for name in ("nested_json_of_flat_json",)},
        ),
        ServiceCase(
            "poisoned",
            "poisoned.py",
            {"records": lengths.poisoned_records, "rounds": lengths.poisoned_rounds},
            {"poisoned_of_clean": "poisoned_of_clean"},
        ),
        ServiceCase(
            "balance",
            "balance.py",
            {"rows": lengths.balance_rows},
            {name: name for name in ("balance_auc_pr_of_plain", "balance_worst_decile")},
        ),
        ServiceCase(
            "windows",
            "windows.py",
            {"rounds": lengths.windows_rounds},
            {name: name for name in ("windows_of_plain", "windows_gain_points")},
        ),
        ServiceCase(
            "reservoir",
            "reservoir.py",
            {"rounds": lengths.windows_rounds, "rows": lengths.reservoir_rows},
            {name: name for name in ("reservoir_of_plain", "reservoir_first_class_kept")},
        ),
        ServiceCase(
            "eyes",
            "eyes.py",
            {"rounds": lengths.formats_rounds, "pairs": lengths.eyes_pairs, "records": lengths.decode_records},
            {name: name for name in ("eyes_of_plain", "slices_of_plain")},
        ),
        ServiceCase(
            "planted",
            "planted.py",
            {"fields": lengths.planted_fields, "seeds": lengths.planted_seeds, "weeks": lengths.planted_weeks},
            {name: name for name in ("faults_named", "false_names")},
        ),
        ServiceCase(
            "page",
            "page_fields.py",
            {"fields": lengths.page_fields, "rounds": lengths.page_rounds},
            {name: name for name in ("page_opens_s", "page_fields_s")},
        ),
        ServiceCase(
            "recent",
            "recent.py",
            {"rounds": lengths.recent_rounds, "records": lengths.recent_records},
            {
                name: name
                for name in ("memory_of_passes_cpu", "memory_of_passes_points", "members_cpu", "members_points")
            },
        ),
        ServiceCase(
            "where",
            "where.py",
            {"rounds": lengths.windows_rounds, "records": lengths.decode_records},
            {"where_over_plain": "where_over_plain"},
            {f"where_over_plain_{form}": f"where_over_plain_{form}" for form in ("json", "avro", "protobuf")},
        ),
        ServiceCase(
            "joined",
            "joined.py",
            {"rounds": lengths.windows_rounds, "records": lengths.decode_records},
            {name: name for name in ("join_of_plain", "join_all_of_plain")},
        ),
        ServiceCase(
            "joined-streams",
            "joined_streams.py",
            {**where, "rounds": lengths.joined_streams_rounds, "records": lengths.joined_streams_records},
            {"join_over_kafka_streams": "join_over_kafka_streams"},
        ),
        ServiceCase(
            "waiting-labels",
            "waiting_labels.py",
            {**where, "labels": lengths.waiting_labels},
            {name: name for name in ("waiting_labels_5m_bytes", "waiting_labels_restart_s")},
        ),
        ServiceCase(
            "on-arrival",
            "on_arrival.py",
            {**where, "seconds": lengths.on_arrival_s},
            {"arrival_score_cpu": "arrival_score_cpu"},
        ),
        ServiceCase(
            "forked",
            "forked.py",
            {"records": lengths.forked_records},
            {name: name for name in ("fork_loss_of_old", "anew_loss_of_old")},
        ),
        ServiceCase(
            "decode-example",
            "decode_example.py",
            {"records": lengths.decode_records, "rounds": lengths.decode_rounds},
            {"example_of_parse_example": "example_of_parse_example"},
            {name: name for name in ("example_poisoned_of_clean", "example_records_per_cpu_s")},
        ),
        ServiceCase(
            "decode-avro",
            "decode_avro.py",
            {"records": lengths.decode_records, "rounds": lengths.decode_rounds},
            {"avro_over_fastavro": "avro_over_fastavro"},
            {name: name for name in ("avro_floats_over_fastavro", "avro_poisoned_of_clean", "avro_records_per_cpu_s")},
        ),
        ServiceCase(
            "decode-protobuf",
            "decode_protobuf.py",
            {"records": lengths.decode_records, "rounds": lengths.decode_rounds},
            {"protobuf_over_upb": "protobuf_over_upb"},
            {name: name for name in ("protobuf_of_ptars", "protobuf_poisoned_of_clean", "protobuf_records_per_cpu_s")},
        ),
        ServiceCase(
            "off-cpu-step",
            "off_cpu_step.py",
            {**on["json"], "seconds": lengths.off_cpu_s},
            {"off_cpu_step_of_ideal": "of_ideal"},
            {"off_cpu_step_alone_ms": "step_alone_ms"},
        ),
        ServiceCase(
            "freshness",
            "freshness.py",
            {**where, "rate": 1000, "seconds": lengths.freshness_s},
            {"freshness_p99_ms": "p99_ms"},
        ),
        ServiceCase(
            "freshness-slow",
            "freshness.py",
            {**where, "rate": 10, "shuffle": 4096, "seconds": lengths.freshness_s},
            details={"freshness_slow_p99_ms": "p99_ms"},
        ),
        ServiceCase(
            "full-speed-raw",
            "full_speed.py",
            {**on["raw"], "format": "raw", "seconds": lengths.full_speed_raw_s},
            fast,
            {"memory_slope_at_full_speed_mb_per_min": "memory_slope_mb_per_min", "memory_of_bound": "memory_of_bound"},
        ),
        ServiceCase(
            "full-speed-json",
            "full_speed.py",
            {**on["json"], "format": "json", "seconds": lengths.full_speed_json_s},
            fast,
        ),
        ServiceCase(
            "memory",
            "memory.py",
            {**where, "seconds": lengths.memory_s},
            {"memory_slope_mb_per_min": "slope_mb_per_min"},
            {"memory_seconds": "seconds", "memory_of_bound": "memory_of_bound"},
        ),
        ServiceCase(
            "first-call", "first_call.py", {**on["json"], "starts": lengths.starts}, {"first_call_s": "first_call_s"}
        ),
        ServiceCase(
            "pretrain",
            "pretrain.py",
            {
                "rows": lengths.pretrain_rows,
                "light-rows": lengths.pretrain_light_rows,
                "rounds": lengths.pretrain_rounds,
            },
            {
                "pretrain_parquet_of_memory": "parquet_of_memory",
                "pretrain_tfrecord_of_memory": "tfrecord_of_memory",
                "pretrain_examples_of_memory": "examples_of_memory",
                "pretrain_over_naive": "over_naive",
            },
            {
                "pretrain_parquet_cpu_of_memory": "parquet_cpu_of_memory",
                "pretrain_tfrecord_cpu_of_memory": "tfrecord_cpu_of_memory",
                "pretrain_examples_cpu_of_memory": "examples_cpu_of_memory",
                "pretrain_light_parquet_rows_per_s": "light_parquet_rows_per_s",
                "pretrain_light_tfrecord_rows_per_s": "light_tfrecord_rows_per_s",
                "pretrain_light_rows_per_s": "light_rows_per_s",
                "pretrain_naive_rows_per_s": "naive_rows_per_s",
                "pretrain_others_cores": "others_cores",
            },
        ),
        ServiceCase(
            "data-service",
            "data_service.py",
            {"rows": lengths.data_service_rows, "rounds": lengths.data_service_rounds},
            {"data_service_2_over_1": "two_over_one"},
            {
                "data_service_1_rows_per_s": "one_rows_per_s",
                "data_service_2_rows_per_s": "two_rows_per_s",
                "data_service_cpu_kept": "cpu_kept",
                "data_service_consumer_cores": "consumer_cores",
                "data_service_others_cores": "others_cores",
            },
        ),
        ServiceCase(
            "serve-swaps",
            "serve_swaps.py",
            {"swaps": lengths.serve_swaps},
            {"serve_failed": "failed", "serve_swap_p99_ratio": "swap_p99_ratio"},
            {
                "serve_p99_ms": "p99_ms",
                "serve_swap_p99_ms": "swap_p99_ms",
                "serve_p50_ms": "p50_ms",
                "serve_swap_p50_ms": "swap_p50_ms",
                "serve_requests": "requests",
                "serve_others_cores": "others_cores",
            },
        ),
        ServiceCase(
            "served-memory",
            "served_memory.py",
            {**where, "keys": lengths.served_keys, "turns": lengths.served_turns},
            {
                "served_memory_p99_ratio": "p99_ratio",
                "served_memory_key_of_state": "key_bytes_of_state",
                "served_memory_start_s": "start_above_s",
            },
            {
                "served_memory_p99_ms": "p99_ms",
                "served_memory_plain_p99_ms": "plain_p99_ms",
                "served_memory_p50_ms": "p50_ms",
                "served_memory_plain_p50_ms": "plain_p50_ms",
                "served_memory_key_bytes": "key_bytes",
                "served_memory_records_per_s": "records_per_s",
                "served_memory_others_cores": "others_cores",
            },
        ),
        ServiceCase(
            "poisoned-stream",
            "poisoned_stream.py",
            {**where, "records": lengths.poisoned_stream_records, "rounds": lengths.poisoned_stream_rounds},
            {"poisoned_stream_of_clean": "poisoned_stream_of_clean"},
            {"poisoned_stream_cpu_of_clean": "poisoned_stream_cpu_of_clean"},
        ),
        ServiceCase(
            "exporting",
            "exporting.py",
            {**on["raw"], "exports": lengths.exports, "seconds": lengths.exports_plain_s},
            {"export_throughput_kept": "export_throughput_kept"},
            {"export_beside_kept": "beside_kept", "export_pause_p99_ratio": "pause_p99_over_without"},
        ),
        ServiceCase(
            "foreign",
            "foreign.py",
            where,
            {"foreign_max_difference": "max_difference"},
            {"foreign_numbers_equal_share": "numbers_equal_share"},
        ),
        ServiceCase(
            "archive",
            "archive.py",
            {"rounds": lengths.archive_rounds},
            {"archive_write_of_library": "write_of_library", "archive_read_of_library": "read_of_library"},
            {"archive_replay_of_library": "replay_of_library", "archive_write_by_clock": "write_of_library_by_clock"},
        ),
        ServiceCase(
            "group",
            "group.py",
            {
                **where,
                "json": on["json"]["topic"],
                "raw": on["raw"]["topic"],
                "seconds": lengths.group_s,
                "restarts": lengths.group_restarts,
                "ways": lengths.group_ways,
            },
            {
                "group_decode_2_over_1": "decode_2_over_1",
                "group_decode_cpu_kept": "decode_cpu_kept",
                "group_mlp_cpu_kept": "mlp_cpu_kept",
                "group_restart_p50_s": "restart_p50_s",
            },
            {
                "group_mlp_2_over_1": "mlp_2_over_1",
                "group_decode_sharing_2_over_1": "decode_sharing_2_over_1",
                "group_decode_sharing_cpu_kept": "decode_sharing_cpu_kept",
                "group_mlp_sharing_cpu_kept": "mlp_sharing_cpu_kept",
                "group_decode_3_over_1": "decode_3_over_1",
                "group_decode_3_cpu_kept": "decode_3_cpu_kept",
                "group_mlp_3_over_1": "mlp_3_over_1",
                "group_mlp_3_cpu_kept": "mlp_3_cpu_kept",
            },
        ),
    ]


def gathered(cases: Iterable[ServiceCase], runs: Mapping[str, list[Mapping[str, Any]]], what: str) -> dict[str, Any]:
    """Figures (or details) out of what the cases printed, by name: of several runs the median, of cases the worst."""
    found: dict[str, list[Any]] = {}
    for case in cases:
        for name, key in getattr(case, what).items():
            printed = [{**run["details"], **run["figures"]} for run in runs.get(case.name, ())]
            values = [results[key] for results in printed if key in results]
            if values:
                found.setdefault(name, []).append(statistics.median(values))
    return {name: max(values) for name, values in found.items()}
