"""The metrics of `millrace serve`, a process of its own: names and words, as those of the trainer have. Pure."""

from millrace.consumers.metric import counter, gauge, histogram

SERVING = (
    gauge(
        "serve_ready",
        "1 if /readyz answers 200. 0 is bad: no version is loaded, its memory is too old, or the server is ending.",
    ),
    gauge(
        "serve_version",
        "The version that answers requests that name no version. Bad: it falls, and is not pinned.",
    ),
    gauge(
        "serve_newest_version", "The newest version that there is. Bad: above serve_version for long, without a pin."
    ),
    gauge("serve_pinned", "1 if serve.version pins a version. Bad: the pin was forgotten."),
    gauge(
        "serve_export_age_seconds",
        "The age of the export that answers. Bad: far above the time between exports.",
    ),
    gauge("serve_versions_loaded", "How many versions are in memory. Bad: above serve.loaded for minutes."),
    gauge(
        "serve_following",
        "1 if the wanted version answers and the server can look for versions. 0 is bad: GET /v1/models/NAME/served "
        "says why.",
    ),
    counter(
        "serve_requests",
        "Predict requests by outcome: answered; refused (4xx); busy (503: the queue was full, or nothing was loaded "
        "yet); failed (other 5xx). Bad: failed grows, or busy does.",
        "outcome",
    ),
    gauge("serve_requests_in_progress", "Predict requests in progress. Bad: at serve.batch.queue."),
    histogram(
        "serve_request_seconds", "How long predict requests took, from their head to their answer. Bad: it rises."
    ),
    counter(
        "serve_rows", "Rows that the model was asked for, those of refused calls included. Bad: no value by itself."
    ),
    histogram("serve_batch_rows", "Rows in a call of the model. Bad: near serve.batch.rows while requests wait long."),
    counter("serve_swaps", "How often another version took over. Bad: it grows faster than versions are exported."),
    counter(
        "serve_load_failures",
        "Versions that could not be fetched, verified or loaded, each try. Bad: it grows; the log says why.",
    ),
    gauge(
        "serve_memory_age_seconds",
        "With serve.memory: by how many seconds the memory of keys is older than the topic. Bad: above "
        "serve.memory.max_lag; GET /v1/models/NAME/served says why.",
    ),
    gauge(
        "serve_memory_behind_records",
        "With serve.memory: offsets of the topic that are not in the memory yet. Bad: it grows.",
    ),
    gauge(
        "serve_memory_keys", "With serve.memory: keys whose last records are in memory. Bad: far fewer than are active."
    ),
    gauge(
        "serve_memory_bytes",
        "With serve.memory: the most memory that these records take. Bad: as much as windows.max_bytes for each "
        "partition.",
    ),
    counter(
        "serve_memory_lost",
        "With serve.memory: offsets that Kafka no longer had when they were to be read. Bad: it grows; sequences lack "
        "these records.",
    ),
    counter(
        "serve_log_written", "With serve.log: predictions that are in its topic. Bad: it stands still while rows grow."
    ),
    counter(
        "serve_log_dropped",
        "With serve.log: rows that are not logged, by reason: full (the queue), too_large (the record), unknown (other "
        "features than the config's, or an output that is not one value a row), ending (the server). Bad: it grows; "
        "GET /v1/models/NAME/served says why.",
        "reason",
    ),
    gauge("serve_log_waiting", "With serve.log: requests and rows that wait to be written. Bad: it grows."),
    gauge("serve_process_resident_memory_bytes", "Memory of the process. Bad: it grows from swap to swap."),
    counter("serve_process_cpu_seconds", "CPU time of the process since its start. Bad: no value by itself."),
    gauge("serve_process_cpu_seconds", "Deprecated: the same, as a gauge; take the counter, which ends in `_total`."),
)
