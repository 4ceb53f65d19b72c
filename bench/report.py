"""Takes the figures of `build/bench.json` into `docs/figures.json`, and writes the tables of `docs/benchmarks.md`.

    python bench/report.py [--from build/bench.json] [--figures docs/figures.json] [--into docs/benchmarks.md]

A run that is not valid leaves the figures of its rounds as they were; a run of some cases leaves those of the others,
and the rates of all; peers and streams have runs of their own. What stands between the two marks of the page is
replaced; the plots lie beside it. Nothing is measured here.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bars import bars
from lines import lines

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.house.figures import FILE, Figure, Figures, Run, Value, figure, fill, keep, kept, table  # noqa: E402

BEGIN = "<!-- begin of what `make bench-report` writes -->"
END = "<!-- end of what `make bench-report` writes -->"
PRODUCT = "product-json"
FIRST = (
    *("json_over_naive", "raw_over_naive", "json_cpu_over_parts", "raw_cpu_over_parts"),
    *("freshness_p99_ms", "checkpoint_stall_p99_ms", "livez_p99_ms", "first_call_s", "memory_slope_mb_per_min"),
    *("group_decode_2_over_1", "over_tensorflow_io", "ahead_of_forest_points"),
)
"""The figures that the page shows at once; it folds the others."""

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Meaning:
    """What a figure says, and what it is to be."""

    says: str
    aim: str


MEANINGS: Mapping[str, Meaning] = {
    "json_over_naive": Meaning("JSON: how many times as fast as the naive pipeline", "≥ 45"),
    "raw_over_naive": Meaning("raw float32: how many times as fast as the naive pipeline", "≥ 70"),
    "json_cpu_over_parts": Meaning("JSON: CPU of a record over the sum of the parts alone", "≤ 1.10"),
    "raw_cpu_over_parts": Meaning("raw float32: CPU of a record over the sum of the parts alone", "≤ 1.05"),
    "json_over_before": Meaning(
        "JSON: how many times as fast as an earlier commit, which runs beside this one", "≥ 1.4"
    ),
    "raw_over_before": Meaning("raw float32: the same", "≥ 0.97"),
    "nested_over_before": Meaning("decoding nested JSON in one thread: the same, by CPU", "≥ 1.3"),
    "avro_over_before": Meaning("decoding Avro in one thread: the same, by CPU", "≥ 0.97"),
    "poisoned_of_clean": Meaning(
        "decoding and learning alone, one bad record in a hundred, the format that loses most: share of the rate of "
        "clean records, by CPU",
        "≥ 0.9",
    ),
    "poisoned_stream_of_clean": Meaning(
        "the whole service, small JSON records, one in a hundred bad and set aside as a dead letter: share of the rate "
        "of clean records",
        "≥ 0.9",
    ),
    "nested_json_of_flat_json": Meaning(
        "JSON with the same values in nested records and a list of records: share of the rate of flat JSON, by CPU",
        "≥ 0.6",
    ),
    "off_cpu_step_of_ideal": Meaning("a step that waits 10 ms off the CPU: share of the ideal rate", "≥ 0.97"),
    "freshness_p99_ms": Meaning("1,000 records/s: age of a record when it is learnt, p99, ms", "≤ 300"),
    "livez_p99_ms": Meaning("at full speed: `/livez` answers within, p99, ms", "≤ 50"),
    "loop_lag_p99_ms": Meaning("at full speed: lag of both event loops, p99, ms", "≤ 50"),
    "siege_probe_p99_ms": Meaning(
        "1,000 half-open connections and 50 flooding ones: `/livez` on `api.probes` within, p99, ms", "< 100"
    ),
    "checkpoint_stall_p99_ms": Meaning("10 million parameters: training waits for a checkpoint, p99, ms", "≤ 60"),
    "nan_look_cost": Meaning(
        "10 million parameters, a save every 10 s: share of the time that the search for NaN before it takes", "≤ 0.005"
    ),
    "balance_of_plain": Meaning("JSON with classes balanced by weight: share of the rate without balance", "≥ 0.95"),
    "balance_auc_pr_of_plain": Meaning(
        "a class of 1:200 balanced to 1:20: area under precision and recall, over that without balance", "≥ 1.1"
    ),
    "balance_worst_decile": Meaning(
        "the same, by tenths of the positives: greatest distance of predicted over true odds from 1", "≤ 0.1"
    ),
    "windows_of_plain": Meaning(
        "sequences of the last 20 records of each key: share of the plain rate, from bytes to a learnt block", "≥ 0.7"
    ),
    "windows_gain_points": Meaning(
        "a label that depends on the order of a key's records: accuracy of a GRU over the last 20, above that of an "
        "MLP of single records, points",
        "≥ 10",
    ),
    "eyes_of_plain": Meaning(
        "what is always watched of the answers and the inputs, with 28 features: share of the rate without, JSON or "
        "raw, whichever is slower",
        "≥ 0.97",
    ),
    "faults_named": Meaning(
        "200 fields, one fault of twenty kinds planted in one, 20 seeds: share that are named first within 10 s of "
        "records",
        "≥ 0.95",
    ),
    "false_names": Meaning(
        "200 fields without a fault, in a week with days and nights, weekends and a holiday: fields that are named", "0"
    ),
    "page_opens_s": Meaning("seconds from asking for the page to what it says, in a browser that begins anew", "≤ 1"),
    "page_fields_s": Meaning("and from pressing Inputs to its table of 200 fields", "≤ 1"),
    "slices_of_plain": Meaning("the same with slices by two fields besides", ""),
    "reservoir_of_plain": Meaning(
        "a reservoir with a share of 20 %: share of the plain rate, from bytes to a learnt block", "≥ 0.7"
    ),
    "reservoir_first_class_kept": Meaning(
        "five classes one after another, with a reservoir: lowest accuracy on the first class over its peak", "≥ 0.9"
    ),
    "memory_of_passes_cpu": Meaning(
        "eight passes, the later ones of rows of the last 300: CPU of a call, over eight of the same batch", "≤ 1.1"
    ),
    "memory_of_passes_points": Meaning(
        "the same, where what is learnt changes forty times: accuracy above that of eight of the same batch, points",
        "≥ 8",
    ),
    "members_cpu": Meaning(
        "two members, of the last 300 and of the records since a drift: CPU of a call, over one model with a memory",
        "≤ 2.2",
    ),
    "members_points": Meaning(
        "the same, where what is learnt changes forty times: accuracy above that of one model with a memory, points",
        "≥ 0",
    ),
    "where_over_plain": Meaning(
        "`records.where` that filters nine records of ten: rate at which the topic is read, over that at which all of "
        "it is learnt, from bytes to a learnt block, by CPU; the format that gains least",
        "≥ 3",
    ),
    "join_of_plain": Meaning(
        "labels that come later, for three of a hundred records: share of the rate with labels in the records, from "
        "the bytes of both topics to a learnt block, by CPU",
        "≥ 0.9",
    ),
    "join_all_of_plain": Meaning("the same with a label for each record", "≥ 0.7"),
    "join_over_kafka_streams": Meaning(
        "labels that come later: records joined and learnt, over those that Kafka Streams joins and writes to a topic",
        "≥ 3",
    ),
    "waiting_labels_5m_bytes": Meaning("five million labels that wait for their records: memory, bytes", "≤ 268435456"),
    "waiting_labels_restart_s": Meaning("a restart with them, over one with hardly any, s", "≤ 5"),
    "arrival_score_cpu": Meaning(
        "`labels.score_on_arrival: 0.01` in a steady stream: CPU of the trainer, over that of one without", ""
    ),
    "fork_loss_of_old": Meaning(
        "a fork with one more layer, after 50,000 records: its loss over that of the old one", "≤ 1"
    ),
    "anew_loss_of_old": Meaning(
        "the same model with new weights, after as many records: its loss over that of the old one", "> 1"
    ),
    "avro_over_fastavro": Meaning(
        "Avro of ten fields: records decoded into columns, over fastavro's reader, which makes rows, by CPU", "≥ 10"
    ),
    "protobuf_over_upb": Meaning(
        "Protobuf: records decoded into columns, over protobuf's own parser record by record, by CPU", "≥ 4"
    ),
    "example_of_parse_example": Meaning(
        "`tf.train.Example`: records decoded, over TensorFlow's `parse_example` alone, by CPU", "≥ 0.9"
    ),
    "memory_slope_mb_per_min": Meaning("growth of anonymous memory, MB a minute", "< 1"),
    "first_call_s": Meaning("`millrace run` to the first call, s", "≤ 12"),
    "pretrain_parquet_of_memory": Meaning(
        "pretraining an MLP 1024-1024 from an archive of JSON in Parquet: share of the rate from memory", "≥ 0.9"
    ),
    "pretrain_tfrecord_of_memory": Meaning("the same from an archive in TFRecord files with GZIP", "≥ 0.9"),
    "pretrain_examples_of_memory": Meaning("the same numbers from TFRecord files of Examples with GZIP", "≥ 0.9"),
    "pretrain_over_naive": Meaning(
        "pretraining an MLP 64-64 from Examples with GZIP: times as fast as the naive pipeline", "≥ 10"
    ),
    "data_service_2_over_1": Meaning(
        "pretraining by a tf.data service with an expensive `preprocess`: two workers over one, each on a core", "≥ 1.7"
    ),
    "serve_failed": Meaning("`millrace serve`, 50 new versions or 100 under load: requests that failed", "0"),
    "serve_swap_p99_ratio": Meaning(
        "the same, a new version every second: p99 of a request, over p99 without new versions", "≤ 2"
    ),
    "served_memory_p99_ratio": Meaning(
        "`serve.memory` with a million keys, 200 requests/s beside a topic of 20,000 records/s: p99 of a request, over "
        "one that brings its sequence",
        "≤ 2",
    ),
    "served_memory_key_of_state": Meaning("the same: memory of a key, over its bytes in the export", "≤ 1.3"),
    "served_memory_start_s": Meaning("the same: seconds of a start above one without a memory", "≤ 10"),
    "export_throughput_kept": Meaning(
        "exports beside a training at full speed: rate between exports, over the rate without exports", "≥ 0.97"
    ),
    "foreign_max_difference": Meaning(
        "an export with texts and lists, answered by TensorFlow Java: greatest difference to the model's answers",
        "≤ 1e-6",
    ),
    "group_decode_2_over_1": Meaning("JSON, two workers over one, each on a core, 4,096 rows a worker", "≥ 1.6"),
    "group_decode_cpu_kept": Meaning("the same: records a CPU second, two over one", "≥ 0.9"),
    "group_mlp_cpu_kept": Meaning("MLP 1024-1024, 4,096 rows a worker: records a CPU second, two over one", "≥ 0.9"),
    "group_restart_p50_s": Meaning("a worker of two killed: to the group's next call, s", "≤ 20"),
    "archive_write_of_library": Meaning("`millrace archive`: Parquet written, over pyarrow alone, by CPU", "≥ 0.8"),
    "archive_read_of_library": Meaning("the archive read as tables, over pyarrow alone, by CPU", "≥ 0.8"),
    "passes_4_over_1_points": Meaning(
        "drifting streams: 4 passes over 1, both at rate 0.001, points of accuracy", "≥ 8"
    ),
    "ahead_of_forest_points": Meaning(
        "drifting streams: 4 passes at rate 0.003 over River's adaptive random forest, points of accuracy", "> 0"
    ),
    "over_moa_arf_points": Meaning(
        "14 streams of the literature: what `init` drafts over MOA's adaptive random forest, points of accuracy",
        "≥ 2.5",
    ),
    "streams_ahead_of_moa": Meaning("the same: on how many of the 14 the draft is ahead", "≥ 10"),
}


OF_THE_PAGE: Mapping[str, str] = {
    "page_of_use_s": "the slowest of seven openings is of use after, s",
    "page_cpu_share": "what an open page costs the process, as a share of one core",
    "page_complaints": "errors and warnings on the browser's console",
}
"""What `make bench-page` measures; it keeps its figures itself."""
DETAILS: Mapping[str, str] = {
    "poisoned_stream_cpu_of_clean": "the poisoned stream through the whole service: the same by CPU",
    "serve_p99_ms": "`millrace serve` without new versions: a request, p99, ms",
    "serve_swap_p99_ms": "the same with a new version every second, ms",
    "serve_p50_ms": "without new versions: a request, the median, ms",
    "serve_swap_p50_ms": "with a new version every second: a request, the median, ms",
    "serve_requests": "requests that were answered in both",
    "served_memory_p99_ms": "`serve.memory`: a request, p99, ms",
    "served_memory_plain_p99_ms": "a request that brings its sequence, p99, ms",
    "served_memory_p50_ms": "`serve.memory`: a request, the median, ms",
    "served_memory_plain_p50_ms": "a request that brings its sequence, the median, ms",
    "served_memory_key_bytes": "memory of a key with 19 records of three numbers, bytes",
    "served_memory_records_per_s": "records that the memory took in meanwhile, a second",
    "served_memory_others_cores": "cores that others used meanwhile, Kafka and the writer of the topic among them",
    "serve_others_cores": "cores that other processes used meanwhile, the median",
    "export_beside_kept": "the same while the process of an export runs on one of the two cores",
    "export_pause_p99_ratio": "the same: pause between two calls while no export is made, p99, over that without them",
    "off_cpu_step_alone_ms": "the step that waits 10 ms, alone in memory, ms",
    "freshness_slow_p99_ms": "10 records/s, shuffling: age of a record when it is learnt, p99, ms (aim: ≤ 300)",
    "memory_slope_at_full_speed_mb_per_min": "growth of anonymous memory in seconds at full speed, MB a minute",
    "memory_of_bound": "memory that came with the records, at the worst, as a share of `memory.limit` (aim: ≤ 1)",
    "memory_seconds": "duration of the case of paced memory, s",
    "flood_freshness_rise_ms": "delay of the learning by a flooded API, p99, ms (aim: < 200)",
    "siege_main_probe_p99_ms": "the same siege: `/livez` on `api.listen`, beside what floods it, p99, ms (aim: < 100)",
    "flood_lag_growth_share": "growth of the lag under the flood, as a share of what is learnt (aim: none)",
    "decode_processes_over_threads": "JSON decoded on two cores: two processes over two threads, at the very best",
    "nan_look_p50_ms": "10 million parameters with Adam: one search for NaN, the median, ms",
    "avro_floats_over_fastavro": "Avro of 28 floats: records decoded into columns, over fastavro's reader, by CPU",
    "avro_poisoned_of_clean": "Avro of ten fields: one record in a hundred cut short, over none, by CPU",
    "avro_records_per_cpu_s": "the same: records decoded a CPU second",
    "protobuf_of_ptars": "Protobuf: records decoded, over ptars alone, which stops at Arrow and judges none, by CPU",
    "protobuf_poisoned_of_clean": "the same: one record in a hundred cut short, over none, by CPU",
    "protobuf_records_per_cpu_s": "the same: records decoded a CPU second",
    "example_poisoned_of_clean": "the same: one record in a hundred cut short, over none, by CPU",
    "example_records_per_cpu_s": "the same: records decoded a CPU second",
    "pretrain_parquet_cpu_of_memory": "pretraining an MLP 1024-1024: rows a CPU second from Parquet, over memory",
    "pretrain_tfrecord_cpu_of_memory": "the same from an archive in TFRecord files with GZIP",
    "pretrain_examples_cpu_of_memory": "the same from TFRecord files of Examples with GZIP",
    "pretrain_light_parquet_rows_per_s": "pretraining an MLP 64-64 from Parquet, which is limited by reading, rows/s",
    "pretrain_light_tfrecord_rows_per_s": "the same from an archive in TFRecord files with GZIP, rows/s",
    "pretrain_light_rows_per_s": "the same from TFRecord files of Examples with GZIP, rows/s",
    "pretrain_naive_rows_per_s": "the naive pipeline from one such file, rows/s",
    "pretrain_others_cores": "cores that other processes used meanwhile, the median",
    "data_service_1_rows_per_s": "the same: one worker, rows/s",
    "data_service_2_rows_per_s": "the same: two workers, rows/s",
    "data_service_cpu_kept": "the same: rows a CPU second of the workers, two over one",
    "data_service_consumer_cores": "the same: cores that the consumer of two workers' rows needs",
    "data_service_others_cores": "cores that other processes used meanwhile, the median",
    "group_mlp_2_over_1": "MLP 1024-1024, two workers over one, each on a core",
    "group_decode_sharing_2_over_1": "JSON, two workers that share a batch of 4,096 over one",
    "group_decode_sharing_cpu_kept": "the same: records a CPU second",
    "group_mlp_sharing_cpu_kept": "MLP 1024-1024, two workers that share a batch of 4,096: records a CPU second",
    "group_decode_3_over_1": "JSON, three workers over one, on as many cores as there are",
    "group_decode_3_cpu_kept": "the same: records a CPU second",
    "group_mlp_3_over_1": "MLP 1024-1024, three workers over one, on as many cores as there are",
    "group_mlp_3_cpu_kept": "the same: records a CPU second",
    "foreign_numbers_equal_share": "an export answered by TensorFlow Java: numbers that equal the model's bit for bit",
    "archive_replay_of_library": "the archive read as the trainer takes records, over pyarrow alone, by CPU",
    "archive_write_by_clock": "the archive written and synced, over pyarrow alone unsynced, by the clock",
    "checkpoint_cost_share": "share of the learning that one save every 10 s costs (aim: ≤ 0.02)",
    "checkpoint_next_call_p50_ms": "how much longer the call after a save takes than a quiet call, the median, ms",
    "checkpoint_noise_p99_ms": "how much calls differ without a save, p99, ms",
}


OF_STREAMS = ("passes_4_over_1_points", "ahead_of_forest_points")
PLANTED, WHOLE_PLANTED = "planted", {"fields": 200, "seeds": 20, "weeks": 1}
OF_PLANTED = ("faults_named", "false_names")
OF_DRAFTS = ("over_moa_arf_points", "streams_ahead_of_moa")
PEERS = ("tensorflow_io", "river", "vowpal_wabbit", "scikit_learn", "quix_streams")
STAGES = (
    *("fetch", "chunk", "hand-off", "consumer, rest", "decode", "assemble", "feed", "tf.data", "call", "settle"),
    *("live metrics", "trainer, rest", "other threads"),
)
"""In the order of the pipeline."""


def meaning_of(name: str) -> Meaning:
    """What a figure says; of a peer's, by its name."""
    if name.startswith("over_") and name not in MEANINGS:
        return Meaning(f"how many times as fast as {title_of(name.removeprefix('over_'))}", "> 1")
    return MEANINGS[name] if name in MEANINGS else Meaning(OF_THE_PAGE[name], "")


def title_of(peer: str) -> str:
    """A peer's name as it writes itself."""
    titles = {"tensorflow_io": "tensorflow-io", "scikit_learn": "scikit-learn", PRODUCT: "millrace"}
    return titles.get(peer, peer.replace("_", " ").title())


def place(report: Report) -> str:
    """On which machine, with what."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['cpus']} cores ({machine['cpu']}), Python {machine['python']}, {versions}"


def run_of(report: Report, command: str) -> Run:
    """The run behind the figures of a report, or of a part of it that has a date of its own."""
    return Run(date=report["as_of"][:10], commit=str(report["machine"]["commit"]), command=command)


def taken(report: Report) -> dict[str, Figure]:
    """Every figure of a report, under the name by which it is kept."""
    found = rounds_of(report) if (report.get("validity") or {}).get("valid") else {}
    found |= counts_of(report)
    if "peers" in report:
        found |= peers_of(report)
    if "streams" in report:
        found |= streams_of(report)
    if "drafts" in report:
        found |= drafts_of(report)
    return found


def counts_of(report: Report) -> dict[str, Figure]:
    """What is counted and not timed, by a case of full length: others at work beside it do it no harm."""
    told = [one["details"] for one in report.get("service_cases", {}).get(PLANTED, ()) if "error" not in one]
    if not told or any(told[0][what] < least for what, least in WHOLE_PLANTED.items()):
        return {}
    again = report.get("again", {}).get(PLANTED)
    where = {"as_of": report["as_of"], "commit": report["machine"]["commit"]} if again is None else again
    run = Run(date=where["as_of"][:10], commit=str(where["commit"]), command="make bench")
    return {name: figure(name, report["figures"][name], run, aim=MEANINGS[name].aim) for name in OF_PLANTED}


def rounds_of(report: Report) -> dict[str, Figure]:
    """What `make bench` measured: figures, details, rates of the cases, CPU by stage."""
    only = report.get("only")
    run = run_of(report, f"make bench CASES={','.join(only)}" if only else "make bench")
    by_round = report.get("figures_by_round", {})
    found = {
        name: figure(name, value, run, aim=meaning_of(name).aim, rounds=by_round.get(name, ()))
        for name, value in report["figures"].items()
        if name in MEANINGS and name not in {*OF_STREAMS, *OF_DRAFTS, *OF_PLANTED}
    }
    others: dict[str, Value] = dict(report.get("details") or {})
    if only:  # rates and stages are printed under one date: a whole run's
        return found | {name: figure(name, value, run) for name, value in others.items() if value is not None}
    for case, told in report.get("cases", {}).items():
        others |= {
            f"case.{case}.records_per_s": told["records_per_s"],
            f"case.{case}.cpu_us": told["cpu_us_per_record"],
        }
    for form, spent in (report.get("stages") or {}).items():
        others |= {f"stage.{form}.{stage}.cpu_us": us for stage, us in spent.items()}
    others["machine.bench"] = place(report)
    return found | {name: figure(name, value, run) for name, value in others.items() if value is not None}


def peers_of(report: Report) -> dict[str, Figure]:
    """What `make bench-peers` measured."""
    details, by_round = report["peers"], report.get("figures_by_round", {})
    run, plan = run_of(details, "make bench-peers"), details["plan"]
    found = {
        name: figure(name, value, run, aim="> 1", rounds=by_round.get(name, ()))
        for name, value in report["figures"].items()
        if name.startswith("over_") and name not in MEANINGS
    }
    judged = f"records {plan['warm_up'] - plan['judged'] + 1:,} to {plan['warm_up']:,}"
    others: dict[str, Value] = {"machine.peers": f"{place(details)}, Kafka {details['kafka']}", "peer.judged": judged}
    for peer, told in details["cases"].items():
        measured = {key: told[key] for key in ("records_per_s", "accuracy", "package", "note")}
        measured["cpu_us"] = told["cpu_us_per_record"]
        others |= {f"peer.{peer}.{key}": value for key, value in measured.items() if value is not None}
    return found | {name: figure(name, value, run) for name, value in others.items()}


def streams_of(report: Report) -> dict[str, Figure]:
    """What `make bench-streams` measured; accuracies in percent."""
    details = report["streams"]
    run = run_of(details, "make bench-streams")
    found = {
        name: figure(name, report["figures"][name], run, aim=MEANINGS[name].aim)
        for name in OF_STREAMS
        if name in report["figures"]
    }
    others: dict[str, Value] = {"machine.streams": f"{place(details)}, River {details['river']}"}
    others |= {f"stream.mean.{learner}": mean for learner, mean in details["mean_percent"].items()}
    for stream, by_learner in details["learnt"].items():
        for learner, told in by_learner.items():
            others[f"stream.{stream}.{learner}"] = round(100 * told["accuracy"], 2)
            others[f"stream.{stream}.{learner}.cpu_us"] = told["cpu_us_per_record"]
    return found | {name: figure(name, value, run) for name, value in others.items()}


def drafts_of(report: Report) -> dict[str, Figure]:
    """What `make bench-drafts` measured; accuracies in percent, the mean of the seeds."""
    details = report["drafts"]
    run = run_of(details, "make bench-drafts")
    found = {name: figure(name, report["figures"][name], run, aim=MEANINGS[name].aim) for name in OF_DRAFTS}
    others: dict[str, Value] = {"machine.drafts": f"{place(details)}; {details['seeds']} seeds"}
    for stream, by_learner in details["learnt"].items():
        for learner in ("draft", "moa"):
            results = by_learner[learner]
            others[f"draft.{stream}.{learner}"] = round(100 * fmean(one["accuracy"] for one in results), 1)
            others[f"draft.{stream}.{learner}.cpu_us"] = round(fmean(one["cpu_us_per_record"] for one in results))
    return found | {name: figure(name, value, run) for name, value in others.items()}


def rows_of(figures: Figures, names: Iterable[str]) -> Iterator[list[str]]:
    """The rows of figures: what each says, its value, its spread, and its aim, with a word if it is missed."""
    for name in names:
        told, meaning = figures[name], meaning_of(name)
        spread = "" if told.rounds is None else f"{number(told.low)} to {number(told.high)} ({told.rounds})"
        aim = f"{told.aim}: missed" if told.missed else told.aim
        yield [f"`{name}`", meaning.says, f"**{number(told.value)}**", spread, aim, told.date]


def folded(summary: str, written: Sequence[str]) -> list[str]:
    """What a reader opens by a click."""
    return ["<details>", f"<summary>{summary}</summary>", "", *written, "", "</details>"]


def cases(figures: Figures) -> Iterator[list[str]]:
    """Rates and costs, for this machine only."""
    for case in parts_of(figures, "case."):
        rate, cost = figures[f"case.{case}.records_per_s"].value, figures[f"case.{case}.cpu_us"].value
        yield [case, f"{rate:,}", f"{cost:.2f}"]


def stages(figures: Figures) -> list[str]:
    """The CPU of each stage, by format, the stages in the order of the pipeline."""
    spent: dict[str, dict[str, float]] = {form: {} for form in parts_of(figures, "stage.")}
    for name, told in figures.items():
        if name.startswith("stage."):
            _, form, stage = name.split(".", 2)
            spent[form][stage.removesuffix(".cpu_us")] = float(told.value)
    rows = [[stage, *(f"{each.get(stage, 0.0):.3f}" for each in spent.values())] for stage in STAGES]
    total = ["**all**", *(f"**{sum(each.values()):.2f}**" for each in spent.values())]
    return table(["CPU µs a record", *spent], [*rows, total])


def dated_stages(figures: Figures) -> list[str]:
    """The stages, under the run that measured them."""
    told = next((told for name, told in figures.items() if name.startswith("stage.")), None)
    run = [] if told is None else [f"{told.date}, commit {told.commit}, `{told.command}`.", ""]
    return [*run, *stages(figures)]


def peers(figures: Figures) -> Iterator[list[str]]:
    """The product and its peers: what they trained, how fast, and how well after the same records."""

    def told(peer: str, key: str, otherwise: str = "") -> Value:
        found = figures.get(f"peer.{peer}.{key}")
        return otherwise if found is None else found.value

    for peer in (PRODUCT, *PEERS):
        if f"peer.{peer}.records_per_s" not in figures:
            yield [title_of(peer), "not measured", "", "", "", ""]
            continue
        times = figures.get(f"over_{peer}")
        yield [
            str(told(peer, "package")) or f"**{title_of(peer)}**",
            str(told(peer, "note", "an MLP 28-64-64-1 with Adam")),
            f"{told(peer, 'records_per_s'):,}",
            f"{told(peer, 'cpu_us'):.1f}",
            f"{told(peer, 'accuracy'):.3f}",
            "" if times is None else f"{number(times.value)} times",
        ]


STREAM_TITLES = {"agrawal": "Agrawal", "random_rbf": "RandomRBF", "led": "LED", "forest": "River's forest"}


DRAFT_TITLES = {
    "draft": "draft",
    "memory": "with a memory, without members",
    "passes": "without either",
    "moa": "MOA's forest",
}


def streams(figures: Figures) -> list[str]:
    """The drifting streams: how often each learner was right, by stream, and what a record cost it."""
    learners = [name.removeprefix("stream.mean.") for name in figures if name.startswith("stream.mean.")]
    streams = [name for name in STREAM_TITLES if f"stream.{name}.{learners[0]}" in figures]

    def rows() -> Iterator[list[str]]:
        for learner in learners:
            accuracies = [f"{figures[f'stream.{stream}.{learner}'].value:.1f}" for stream in streams]
            costs = [float(figures[f"stream.{stream}.{learner}.cpu_us"].value) for stream in streams]
            mean, spread = figures[f"stream.mean.{learner}"].value, f"{number(min(costs))} to {number(max(costs))}"
            yield [STREAM_TITLES.get(learner, f"millrace, {learner}"), *accuracies, f"**{mean:.1f}**", spread]

    titles = [STREAM_TITLES[stream] for stream in streams]
    return table(["accuracy, percent", *titles, "mean", "CPU µs a record"], rows())


def drafts(figures: Figures) -> list[str]:
    """The streams of the literature: how often the draft and the forest were right, and what a record cost them."""
    columns = ("draft", "moa", "draft.cpu_us", "moa.cpu_us")
    rows = (
        [stream, *(str(figures[f"draft.{stream}.{column}"].value) for column in columns)]
        for stream in parts_of(figures, "draft.")
    )
    head = ["stream", "draft, percent", "forest, percent", "draft, CPU µs a record", "forest, CPU µs a record"]
    return table(head, rows)


def parts_of(figures: Figures, prefix: str) -> list[str]:
    """The second parts of dotted names, each once."""
    return list(dict.fromkeys(name.split(".")[1] for name in figures if name.startswith(prefix)))


def stream_curves(report: Report, shown: Sequence[str]) -> str:
    """The accuracy along each stream, of these learners."""
    plan = report["plan"]
    charts = {
        STREAM_TITLES[stream]: {
            STREAM_TITLES.get(name, f"millrace, {name}"): results[name]["curve"] for name in shown if name in results
        }
        for stream, results in report["learnt"].items()
    }
    marks = [first / plan["records"] for first in range(plan["concept"], plan["records"], plan["concept"])]
    return lines(f"Accuracy on records before they are learnt, by {plan['window']} records", charts, marks)


def draft_curves(report: Report) -> str:
    """The accuracy along streams that change twice at once, of the first seed."""
    learnt = {stream: by for stream, by in report["learnt"].items() if set(DRAFT_TITLES) <= by.keys()}
    charts = {
        stream: {title: by[name][0]["curve"] for name, title in DRAFT_TITLES.items()} for stream, by in learnt.items()
    }
    return lines("Accuracy on records before they are learnt, by 500 records", charts, (1 / 3, 2 / 3))


def number(value: Value | None) -> str:
    """Three figures or so."""
    assert isinstance(value, int | float)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ran(told: Figure) -> str:
    """When it was measured, of which commit, and on what."""
    return f"{told.date}, commit {told.commit}, `{told.command}`: {told.value}."


def text(figures: Figures) -> str:
    """Everything between the marks."""
    every = [*MEANINGS, *(f"over_{peer}" for peer in PEERS)]
    shown = [name for name in FIRST if name in figures]
    others = [name for name in every if name in figures and name not in FIRST]
    beside = [[f"`{name}`", says, number(figures[name].value)] for name, says in DETAILS.items() if name in figures]
    head = ["figure", "meaning", "value", "from, to (rounds)", "aim", "measured"]
    missed = sum(figures[name].missed for name in others)
    written = ["", "### Figures", "", *table(head, rows_of(figures, shown)), ""]
    written += [
        *folded(f"{len(others)} more figures; {missed} miss their aims", table(head, rows_of(figures, others))),
        "",
    ]
    written += [*folded("Details beside them", table(["detail", "meaning", "value"], beside)), ""]
    if "machine.bench" in figures:
        rates = table(["case", "records/s", "CPU µs a record"], cases(figures))
        written += ["### Rates of the cases", "", ran(figures["machine.bench"]), "", *rates, ""]
        written += ["### Where the CPU goes", "", *dated_stages(figures), ""]
    if found := [name for name in OF_THE_PAGE if name in figures]:
        run = figures[found[0]]
        written += ["### The page", "", f"{run.date}, commit {run.commit}, `{run.command}`.", ""]
        written += [*table(head, rows_of(figures, found)), ""]
    if "machine.peers" in figures:
        head = ["", "what it trains", "records/s", "CPU µs a record", "accuracy", "millrace is faster by"]
        written += ["### Peers", "", ran(figures["machine.peers"]), "", *table(head, peers(figures)), ""]
        written += [f"Accuracy: of {figures['peer.judged'].value}, each judged before it was learnt.", ""]
        written += ["![Records a second of millrace and its peers](benchmarks-peers.svg)", ""]
    if "machine.streams" in figures:
        written += ["### Drifting streams", "", ran(figures["machine.streams"]), "", *streams(figures), ""]
        written += ["![Accuracy along the drifting streams](benchmarks-streams.svg)", ""]
    if "machine.drafts" in figures:
        written += ["### What `init` drafts", "", ran(figures["machine.drafts"]), "", *drafts(figures), ""]
        written += ["![Accuracy along streams that change at once](benchmarks-drafts.svg)", ""]
    return "\n".join(written)


def plot(figures: Figures) -> str:
    """The peers' rates."""
    named = {peer: figures.get(f"peer.{peer}.records_per_s") for peer in (PRODUCT, *PEERS)}
    rates = {title_of(peer): float(told.value) for peer, told in named.items() if told is not None}
    return bars("JSON records a second, logarithmic", rates, ours=title_of(PRODUCT))


def main() -> None:
    """Read the report, keep its figures, write the page and the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--figures", type=Path, default=FILE)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks.md")
    given = parser.parse_args()
    report = json.loads(given.source.read_text()) if given.source.exists() else {}
    figures = kept(given.figures)
    if new := taken(report) if report else {}:
        parts = ("case.", "stage.", "peer.", "stream.", "draft.")
        figures = keep(new, given.figures, whole=tuple(p for p in parts if any(name.startswith(p) for name in new)))
    elif report:
        why = (report.get("validity") or {}).get("why")
        print(f"{given.source}: no figure is taken: the run is not valid ({why})", file=sys.stderr)
    given.into.write_text(fill(given.into.read_text(), text(figures), BEGIN, END))
    if "machine.peers" in figures:
        (given.into.parent / "benchmarks-peers.svg").write_text(plot(figures))
    if "streams" in report:
        curves = stream_curves(report["streams"], ("passes 4, rate 0.003", "forest", "passes 1, rate 0.001"))
        (given.into.parent / "benchmarks-streams.svg").write_text(curves)
    if "drafts" in report:
        (given.into.parent / "benchmarks-drafts.svg").write_text(draft_curves(report["drafts"]))


if __name__ == "__main__":
    main()
