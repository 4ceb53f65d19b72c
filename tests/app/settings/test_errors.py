# ruff: noqa: E501 - each mistake stands beside the line that it is told by
"""What a user reads who made a mistake. Every line names file and line, the setting, and the way out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.app.settings import load, load_kafka
from millrace.consumers.errors import ConfigError

Problem = Callable[..., str]
Problems = Callable[..., list[str]]

SASL = """\
name: a
kafka: {{bootstrap_servers: [b:1], topics: [t], {}}}
records: {{features: {{x: float32}}}}
model: {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
"""
RECORDS = """\
name: a
kafka: {{bootstrap_servers: [b:1], topics: [t]}}
records: {{{}}}
model: {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "archive: {path: 5}",
            "clicks.yaml:6: archive.path: this is not a path; write a folder, or a URL as in s3://bucket/clicks",
        ),
        (
            "archive: {path: 's3://key:secret@bucket'}",
            "clicks.yaml:6: archive.path: a URL with a password would stand in logs; leave the credentials to the environment",
        ),
        ("loges: {level: info}", "clicks.yaml:6: loges is not a setting; did you mean logs?"),
        ("batch_size: 5", "clicks.yaml:6: batch_size is not a setting; did you mean training.batch_size?"),
        (
            "training:\n  batchsize: 5",
            "clicks.yaml:7: training.batchsize is not a setting; did you mean training.batch_size?",
        ),
        (
            "stop: {xyzzy: 5}",
            "clicks.yaml:6: stop.xyzzy is not a setting; here are grace",
        ),
        ("name: b", "clicks.yaml:6: name stands here a second time; keep one of them"),
    ],
)
def test_an_unknown_key_names_its_nearest_neighbour(problem: Problem, problems: Problems, text: str, line: str) -> None:
    assert problem(text) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("training: {max_wait: 500}", "training.max_wait: 500 has no unit; write 500s, or another of ms, s, m, h, d"),
        ("training: {max_wait: 5 sec}", "training.max_wait: '5 sec' has a unit that is not one of ms, s, m, h, d; write for instance 5s"),
        ("training: {max_wait: 0s}", "training.max_wait: 0s does not do; it must be more than 0s"),
        ("training: {batch_size: big}", "training.batch_size: 'big' is neither auto nor a whole number from 1; write one of them"),
        ("training: {batch_size: 0}", "training.batch_size: 0 is neither auto nor a whole number from 1; write one of them"),
        ("training: {batch_size: 1.5}", "training.batch_size: 1.5 is neither auto nor a whole number from 1; write one of them"),
        ("training: {shuffle: true}", "training.shuffle: true is not a whole number"),
        ("training: {deterministic: perhaps}", "training.deterministic: perhaps is not true or false"),
        ("training: {replicas: 0}", "training.replicas: 0 is neither auto nor a whole number from 1; write one of them"),
        ("training: {proof: enforced}", "training.proof: enforced is not one of enforce, warn; did you mean enforce?"),
        ("training: {replicas: 3, batch_size: 1024}", "training.batch_size: 1024 rows cannot be shared evenly by 3 replicas; write a multiple"),
        ("training: 5", "training: 5 is not a mapping of settings; write it as in {batch_size: auto}"),
        ("training: {live_metrics: {window: 100ms}}", "training.live_metrics.window: 100ms does not do; it must be at least 1s"),
        ("training: {live_metrics: {better: more}}", "training.live_metrics.better: more is not one of higher, lower"),
        ("training: {live_metrics: {better: higher}}", "training.live_metrics.better: this needs training.live_metrics.watch; name the metric that it is about"),
        ("memory: {limit: 256}", "memory.limit: 256 has no unit; write 256MiB, or another of B, kB, KB, KiB, MB, MiB, GB, GiB, TB, TiB"),
        ("memory: {limit: 1KiB}", "memory.limit: 1KiB does not do; it must be at least 1MiB"),
        ("api: {listen: 8080}", "api.listen: 8080 is not an address; write host:port, as in 127.0.0.1:8080"),
        ("logs: {level: INFO}", "logs.level: INFO is not one of debug, info, warning, error; did you mean info?"),
        ("stop: {grace: null}", "stop.grace: a NoneType is not a duration; write a number and a unit (ms, s, m, h, d), as in 60s"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_quoted_with_the_way_out(problem: Problem, text: str, line: str) -> None:
    assert problem(text) == f"clicks.yaml:6: {line}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "training: {deterministic: true, replicas: 1}",
            "training.deterministic: this needs training.max_wait: null, or timing decides what is learnt",
        ),
        (
            "training: {deterministic: true, max_wait: null}",
            "training.deterministic: this needs training.replicas: 1, not auto",
        ),
        (
            "training: {deterministic: true}",
            "training.deterministic: this needs training.max_wait: null, or timing decides what is learnt; and "
            "training.replicas: 1, not auto",
        ),
    ],
)
def test_determinism_says_what_it_needs(problem: Problem, text: str, line: str) -> None:
    assert problem(text) == f"clicks.yaml:6: {line}"


@pytest.mark.parametrize(
    ("kafka", "line"),
    [
        ("start: yesterday", "kafka.start: start 'yesterday' is not understood: write earliest, latest, committed, an age as in -7d, a time as in 2026-11-21T03:00:00Z, or offsets"),
        ("start: 5", "kafka.start: 5 is not a place to start from: write earliest, latest, committed, an age as in -7d, a time as in 2026-11-21T03:00:00Z, or offsets"),
        ("start: {t: 5}", "kafka.start: 't' is not a partition; write topic:number, as in clicks:0"),
        ("security_protocol: SASL_SSL", "kafka.security_protocol: SASL_SSL also needs kafka.sasl_mechanism"),
        ("sasl_username: me", "kafka.sasl_username: this has no effect with security_protocol PLAINTEXT; write SASL_SSL"),
        ("ssl_ca_file: ca.crt", "kafka.ssl_ca_file: this has no effect with security_protocol PLAINTEXT; write SSL or SASL_SSL"),
        ("security_protocol: SSL, ssl_key_file: k", "kafka.ssl_key_file: a certificate and its key go together; write kafka.ssl_certificate_file too"),
        ("security_protocol: ssl", "kafka.security_protocol: ssl is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL; did you mean SSL?"),
        ("ssl_ca_file: ''", "kafka.ssl_ca_file: the path is empty; write the file's path, or leave the setting out"),
        ("security_protocol: SASL_SSL, sasl_mechanism: OAUTHBEARER", "kafka.security_protocol: SASL_SSL also needs kafka.oauth"),
        ("security_protocol: SASL_SSL, sasl_mechanism: OAUTHBEARER, sasl_username: me, oauth: {token_file: t}", "kafka.sasl_username: this has no effect with sasl_mechanism OAUTHBEARER; leave it out"),
        ("security_protocol: SASL_SSL, sasl_mechanism: AWS_MSK_IAM", "kafka.security_protocol: SASL_SSL also needs kafka.aws_region"),
        ("security_protocol: SASL_SSL, sasl_mechanism: GSSAPI, aws_region: eu-1", "kafka.aws_region: this has no effect with sasl_mechanism GSSAPI; leave it out"),
        ("oauth: {token_file: t}", "kafka.oauth: this has no effect with security_protocol PLAINTEXT; write SASL_SSL"),
        ("oauth: {}", "kafka.oauth: write one of token_endpoint, token_file, token_command"),
        ("oauth: {token_file: t, token_command: [t]}", "kafka.oauth.token_command: token_file is there already; write one of the two"),
        ("oauth: {token_file: t, scope: s}", "kafka.oauth.scope: this has no effect with token_file; leave it out"),
        ("oauth: {token_endpoint: 'https://t', client_id: c}", "kafka.oauth.token_endpoint: an endpoint needs a secret of ours; write client_secret_file too"),
        ("oauth: {token_endpoint: 'https://t', client_secret_file: c}", "kafka.oauth.token_endpoint: an endpoint needs our name there; write client_id too"),
        ("oauth: {token_endpoint: 'https://me:pass@t', client_id: c}", "kafka.oauth.token_endpoint: the text (it holds an @) is no URL of an endpoint; write it as in https://login.example/oauth2/token"),
        ("oauth: {token_file: t, extensions: {auth: x}}", "kafka.oauth.extensions.auth: 'auth' is no extension's name; Kafka allows letters alone, and not auth"),
        ("fetch_bytes: 100B", "kafka.fetch_bytes: 100B does not do; it must be at least 1KiB"),
    ],
)  # fmt: skip
def test_mistakes_about_kafka_are_told(problems: Problems, kafka: str, line: str) -> None:
    assert problems(SASL.format(kafka)) == [f"clicks.yaml:2: {line}"]


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"BOOTSTRAP_SERVERS": "localhost"}, "kafka.bootstrap_servers[0]: 'localhost' is not a server; write host:port, as in localhost:9092"),
        ({"BOOTSTRAP_SERVERS": "[]"}, "kafka.bootstrap_servers: this is empty; write at least one"),
        ({"TOPICS": "a b"}, "kafka.topics[0]: 'a b' is not a topic's name; Kafka allows letters, digits, dot, dash and underscore"),
        ({"TOPICS": "a,a"}, "kafka.topics: a topic stands here twice; name each once"),
        ({"TOPIC": "a"}, "kafka.topic is not a setting; did you mean kafka.topics?"),
    ],
)  # fmt: skip
def test_mistakes_in_the_environment_name_the_variable(
    problems: Problems, variables: dict[str, str], line: str
) -> None:
    environ = {f"MILLRACE_KAFKA__{name}": value for name, value in variables.items()}
    assert problems(**environ) == [f"environment {next(iter(environ))}: {line}"]


def test_a_variable_of_an_unknown_section_is_not_ignored(problems: Problems) -> None:
    (line,) = problems(MILLRACE_TRAINIG__BATCH_SIZE="5")
    assert (
        line
        == "environment MILLRACE_TRAINIG__BATCH_SIZE: trainig.batch_size is not a setting; did you mean training.batch_size?"
    )


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("MILLRACE_TRAINING_BATCH_SIZE", "MILLRACE_TRAINING__BATCH_SIZE"),
        ("millrace_checkpoints_keep_last", "MILLRACE_CHECKPOINTS__KEEP__LAST"),
        ("MILLRACE_MODEL_ARGS_BUCKETS", "MILLRACE_MODEL__ARGS__BUCKETS"),
        ("MILLRACE_RECORDS_FEATURES_AD_ID", "MILLRACE_RECORDS__FEATURES__AD_ID"),
    ],
)
def test_a_variable_with_one_underscore_for_two_is_refused(problems: Problems, variable: str, right: str) -> None:
    assert problems(**{variable: "5"}) == [f"environment {variable}: this names no setting; did you mean {right}?"]


def test_a_variable_with_one_underscore_is_refused_without_a_config_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean MILLRACE_KAFKA__SECURITY_PROTOCOL"):
        load_kafka(tmp_path, "clicks", None, {"MILLRACE_KAFKA_SECURITY_PROTOCOL": "SSL"})


@pytest.mark.parametrize(
    ("records", "line"),
    [
        ("featurs: {a: float32}, features: {b: float32}", "records.featurs is not a setting; did you mean records.features?"),
        ("featurs: {a: float32}", "records.featurs is not a setting; did you mean records.features?"),
        ("features: {}", "records.features: this is empty; write at least one"),
        ("features: {a.lengths: int32}", "records: no feature may be called 'a.lengths': what ends in .lengths goes with ragged features"),
        ("features: {a: {dtype: int8, shape: [2], pad: 0, length: a.lengths}}", "records: no feature may be called 'a.lengths': what ends in .lengths goes with ragged features"),
        ("features: {a: float32}, label: {y: {dtype: int8, shape: [2], pad: 0, length: n}}", "records.label.y.pad: a label cannot vary in length, features alone can; leave it out"),
        ("features: {a: float32}, label: {y: {dtype: int8, shape: [2], ragged: false}}", "records.label.y.ragged: a label cannot vary in length, features alone can; leave it out"),
        ("features: {a: float32}, label: {field: y, length: n}", "records.label.length: a label cannot vary in length, features alone can; leave it out"),
        ("features: {a: float32}, label: {field: y, classes: 9, one_of: [a]}", "records.label.classes: one_of lists the classes; leave one of the two out"),
        ("features: {a: float32}, label: {y: {dtype: int8, classes: 200}}", "records.label.y.dtype: the model gets the numbers of 200 classes, and this is int8; write int32"),
        ("features: {a: float32}, label: {y: {shape: [2], classes: 9}}", "records.label.y.shape: a class is one text; leave it out"),
        ("features: {a: float}", "records.features.a.dtype: float is not one of float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, bool, string; did you mean float32?"),
        ("features: {a: Float}", "records.features.a.dtype: Float is not one of float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, bool, string; did you mean float32?"),
        ("features: {a: integer}", "records.features.a.dtype: integer is not one of float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, bool, string; did you mean int64?"),
        ("features: [a]", "records.features: a list is not a mapping; write it as in {price: float32}"),
        ("features: {a: float32}, label: clicked", "records.label: clicked is not a mapping; write it as in {clicked: float32}"),
        ("features: {a: {dtype: int8, missing: 200}}", "records.features.a.missing: 200 does not fit int8; write a value that does, or null"),
        ("features: {a: {dtype: float32, missing: .nan}}", "records.features.a.missing: nan does not fit float32; write a value that does, or null"),
        ("features: {a: {dtype: string, missing: 1}}", "records.features.a.missing: 1 does not fit string; write a value that does, or null"),
        ("features: {a: {dtype: int8, missing: true}}", "records.features.a.missing: True does not fit int8; write a value that does, or null"),
        ("features: {a: {shape: [2]}}", "records.features.a.dtype is required: the field's type. Write for instance dtype: float32"),
        ("features: {a: {dtype: int8, shape: [0]}}", "records.features.a.shape[0]: 0 does not do; it must be at least 1"),
        ("features: {a: float32}, label: {a: int32}", "records: 'a' and 'a' read the record's field 'a' differently; give both the same dtype, shape, missing, min, max and one_of"),
        ("features: {a: {dtype: int8, min: 3, max: 2}}", "records.features.a.min: 3 is above max, which is 2; nothing would be learnt"),
        ("features: {a: {dtype: int8, max: 200}}", "records.features.a.max: 200 does not fit int8; write a value that does, or null"),
        ("features: {a: {dtype: int8, min: true}}", "records.features.a.min: this is no number; write one, or null"),
        ("features: {a: {dtype: string, min: 1}}", "records.features.a.min: a string has no order; list its values in one_of, or leave min out"),
        ("features: {a: {dtype: int8, one_of: [1, x]}}", "records.features.a.one_of: 'x' does not fit int8; list values that do"),
        ("features: {a: {dtype: int8, example: 300}}", "records.features.a.example: 300 does not fit int8; write a value that does, or a list of such values"),
        ("features: {a: {dtype: string, example: [x, 1]}}", "records.features.a.example: 1 does not fit string; write a value that does, or a list of such values"),
        ("features: {a: {dtype: int8, example: []}}", "records.features.a.example: the list is empty; write a value, or leave it out"),
        ("features: {a: {dtype: int8, shape: [2], example: 1}}", "records.features.a.example: 1 is no list of shape [2]; write one"),
        ("features: {a: {dtype: int8, shape: [2], example: [1, 2, 3]}}", "records.features.a.example: a list of 3 elements does not fit the shape, whose list has 2"),
        ("features: {a: {dtype: int8, one_of: []}}", "records.features.a.one_of: this is empty; write at least one"),
        ("features: {a: int8}, weight: {field: w, min: 2, max: 1}", "records.weight.min: 2 is above max, which is 1; nothing would be learnt"),
        ("features: {a: {dtype: int8, field: x..y}}", "records.features.a.field: 'x..y' is no path: a name is empty; write one on each side of a dot, or \\. for a dot in a name"),
        ("features: {a: {dtype: int8, field: 'x[0]'}}", "records.features.a.field: 'x[0]' is no path: '[' stands alone; write [] for each element of a list, or \\["),
        ("features: {a: {dtype: int8, field: 'x[].y'}}", "records.features.a.field: 'x[].y' is in a list; each [] is one dimension of the shape, and this has 0"),
        ("features: {a: {dtype: int8, field: $id}}", "records.features.a.field: '$id' is no path: a record has no $id beside its value; write one of $key, $timestamp, $partition, $offset, $topic, $header.NAME, or \\$id"),
        ("features: {a: {dtype: int8, field: u}, b: {dtype: int8, field: u.x}}", "records: 'u' and 'u.x' do not agree on what the record holds there: a value, a record, or a list of how many dimensions; mend one of them"),
        ("features: {a: int8, b: {dtype: string, field: $offset}}", "records.features.b.field: '$offset' is an integer; give it the dtype of a number, as int64"),
        ("features: {a: int8, b: {dtype: string, field: $key, shape: [2]}}", "records.features.b.field: '$key' is one value; leave the shape out"),
        ("features: {a: int8}, weight: {field: $topic}", "records.weight.field: '$topic' is text; give it dtype: string"),
        ("features: {b: {dtype: string, field: $key}}, format: raw", "records: no field is read from the value of a record; name at least one"),
        ("features: {a: int8}, event_time: {field: t, zone: UTC}", "records.event_time.zone: only texts need one, and the format is ms; leave it out"),
        ("features: {a: int8}, event_time: {field: t, format: iso8601, zone: Berlin}", "records.event_time.zone: 'Berlin' is no time zone; write one as the tz database has it, as Europe/Berlin or UTC"),
        ("features: {a: int8}, event_time: {field: $offset, format: iso8601}", "records.event_time.field: '$offset' is an integer; give it the dtype of a number, as int64"),
        ("features: {a: int8}, event_time: {field: t, format: min}", "records.event_time.format: min is not one of ms, s, us, ns, iso8601"),
        ("features: {a: {dtype: int8, one_of: [x, x]}}", "records.features.a.one_of: 'x' stands there twice; each class has one place"),
        ("features: {a: {dtype: int8, one_of: [x, y], missing: z}}", "records.features.a.missing: 'z' is none of one_of; write one of those texts, or null"),
        ("features: {a: {dtype: int8, one_of: [x, y], missing: 0}}", "records.features.a.missing: 0 does not fit string; write a value that does, or null"),
        ("features: {a: {dtype: int8, one_of: [x, y], shape: [2], pad: z}}", "records.features.a.pad: 'z' is none of one_of; write one of those texts, or null"),
        ("features: {a: {dtype: int8, one_of: [x, y], min: 0}}", "records.features.a.min: a string has no order; list its values in one_of, or leave min out"),
        ("features: {a: {dtype: int8, one_of: [x, y], example: z}}", "records.features.a.example: 'z' is none of one_of; write one of those texts, or null"),
        ("features: {a: {dtype: float32, one_of: [x, y]}}", "records.features.a.one_of: 'x' does not fit float32; list values that do"),
        ("features: {a: int8}, label: {field: y.}", "records.label.field: 'y.' is no path: a name is empty; write one on each side of a dot, or \\. for a dot in a name"),
        ("features: {a: int8}, weight: {field: 'w[]'}", "records.weight.field: 'w[]' is in a list; each [] is one dimension of the shape, and this has 0"),
        ("features: {a: string}, format: raw", "records: 'a' is a string, which raw records cannot hold; write format: json"),
        ("features: {a: {dtype: int8, missing: 1}}, format: raw", "records: 'a' has a missing value, yet raw records lack nothing; leave it out"),
        ("features: {a: float32}, label: {field: b, dtyp: int8}", "records.label.dtyp is not a setting; did you mean records.label.dtype?"),
        ("features: {a: float32}, label: {b: {dtyp: int8, dtype: int8}}", "records.label.b.dtyp is not a setting; did you mean records.label.b.dtype?"),
        ("features: {a: float32}, weight: w", "records.weight: w is not a mapping of settings; write it as in {field: weight}"),
        ("features: {a: float32}, csv: {delimiter: ;}", "records.csv: this is about format: csv, and the format is json; leave it out"),
        ("features: {a: float32}, format: csv, csv: {columns: [b]}", "records.csv: no column is named 'a'; add it, or mend the field's name"),
        ("features: {a: float32}, format: csv, csv: {columns: [a, b, b]}", "records.csv: 'b' stands there twice; give each column a name of its own"),
        ("features: {a: float32}, format: csv, csv: {delimiter: '--'}", "records.csv: '--' does not do; write one ASCII character that ends no line"),
        ("features: {a: float32}, format: csv, csv: {lists: ','}", "records.csv: delimiter, quote and lists must be different characters"),
        ("features: {a: {dtype: int8, shape: [2, 2]}}, format: csv, csv: {lists: ;}", "records.csv: 'a' has 2 dimensions, and a list in a CSV column has one; leave records.csv.lists out, and give each element a column"),
        ("features: {a: float32}, format: protobuf", "records.protobuf: Protobuf records are read by a descriptor; name its file, protobuf: {descriptor: ...}, or the registry, registry: {url: ...}"),
        ("features: {a: float32}, format: protobuf, protobuf: {message: A}, registry: {url: 'http://r'}", "records.protobuf: the registry says which message a record is; write descriptor too, or leave message out"),
        ("features: {a: float32}, protobuf: {message: A}", "records.protobuf: this is about format: protobuf, and the format is json; leave it out"),
        ("features: {a: string}, format: text", "records: 'a' is read from a field of the value, and a text record has none; write field: $value, or $key, $header.NAME and the like"),
        ("features: {a: {dtype: string, field: $value}}", "records: 'a' is the whole value, and format: json reads fields of it; name one, or write format: text"),
        ("features: {a: float32}, format: jsn", "records.format: jsn is not one of json, avro, protobuf, csv, raw, example, text, bytes; did you mean json?"),
        ("features: {a: float32}, format: [json]", "records.format: a list is not one of json, avro, protobuf, csv, raw, example, text, bytes; did you mean json?"),
        ("features: {a: float32}, format: {csv: 1}", "records.format: a mapping is not one of json, avro, protobuf, csv, raw, example, text, bytes"),
    ],
)  # fmt: skip
def test_mistakes_about_records_are_told(problems: Problems, records: str, line: str) -> None:
    assert problems(RECORDS.format(records)) == [f"clicks.yaml:3: {line}"]


@pytest.mark.parametrize("name", ["My Clicks", "-a", "", "a" * 101, "a/b", "../a", "Ä"])
def test_a_name_that_cannot_be_a_folder_is_refused(problems: Problems, name: str) -> None:
    (line,) = problems(MILLRACE_NAME=name)
    assert line.startswith("environment MILLRACE_NAME: name: ")
    assert "write at most 100 of a-z, 0-9, dot, dash and underscore, a letter or a digit first" in line


@pytest.mark.parametrize("build", ["model.py", "./model:build", "./model.py:", "./model.py:1x", "5"])
def test_a_build_that_names_no_function_is_refused(problems: Problems, build: str) -> None:
    (line,) = problems(MILLRACE_MODEL__BUILD=build)
    assert line.endswith(f"{build!r} is not a function in a file; write ./model.py:build_model")


@pytest.mark.parametrize("every", ["60", "0s", "10ms", "0 steps", "often", "-5 steps"])
def test_a_save_interval_that_cannot_be_says_both_forms(problems: Problems, every: str) -> None:
    (line,) = problems(MILLRACE_CHECKPOINTS__EVERY=every)
    assert line.startswith("environment MILLRACE_CHECKPOINTS__EVERY: checkpoints.every: ")
    assert "steps" in line or "at least 1s" in line


def test_all_problems_are_listed_in_the_order_of_the_file(problems: Problems) -> None:
    text = "nam: clicks\nname: clicks\nkafka:\n  topic: [a]\n  topics: [clicks]\ntraining: {batch_size: x}\n"
    lines = problems(text)
    assert [line.split(":")[1] for line in lines if line[12].isdigit()] == ["1", "3", "4", "6"]
    assert len(lines) == 7
    assert lines[0] == "clicks.yaml:1: nam is not a setting; did you mean name?"
    assert lines[1] == (
        "clicks.yaml:3: kafka.bootstrap_servers is required: brokers to ask first, host:port each. "
        "Write for instance bootstrap_servers: [localhost:9092]"
    )


def test_an_empty_file_is_told_all_that_it_lacks(problems: Problems) -> None:
    required = [line.split(" ")[1] for line in problems("")]
    assert required == [
        "name",
        "kafka.bootstrap_servers",
        "kafka.topics",
        "records.features",
        "model.build",
        "checkpoints.path",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nname: [a\nb: c", "clicks.yaml:2: this is not YAML: a [ that opens on this line is not closed, or a comma is missing"),
        ("a: 1\nname: {a: b\nc: d\n", "clicks.yaml:2: this is not YAML: a { that opens on this line is not closed, or a comma is missing"),
        ("a: 1\nname: 'a\nb: c", "clicks.yaml:2: this is not YAML: a quote that opens on this line is not closed"),
        ("name: a\n\tb: c", "clicks.yaml:2: this is not YAML: a tab indents this line; indent with spaces"),
        ("name: @a", "clicks.yaml:1: this is not YAML: a value begins with a character that YAML reserves; put the value in quotes"),
        ("name:a\nkafka: {}", "clicks.yaml:2: this is not YAML: this line does not follow from the one above; put a space behind each colon, and indent alike what belongs together"),
        ("a:\n  b: c\n d: e", "clicks.yaml:3: this is not YAML: this line is not indented as the lines above it; indent alike what belongs together"),
        ("a: b\nc\nd: e", "clicks.yaml:2: this is not YAML: a key without a colon; write key: value"),
        ("a: b\n---\nc: d", "clicks.yaml:2: this is not YAML: a second document begins here; a config is one document, without ---"),
        ("name: *a", "clicks.yaml:1: this is not YAML: found undefined alias 'a'"),
        ("- a", "clicks.yaml:1: the file is not a mapping; write settings as in name: clicks"),
        ("name: !secret a", "clicks.yaml:1: the tag !secret is not one of YAML's core schema; leave it out"),
        ("? [a]\n: b", "clicks.yaml:1: a key is a list or a mapping; write a word"),
        ("name: !!int x", "clicks.yaml:1: the tag tag:yaml.org,2002:int does not fit its value; leave it out"),
        ("name: !!int ''", "clicks.yaml:1: the tag tag:yaml.org,2002:int does not fit its value; leave it out"),
        ("stop: {<<: 5}", "clicks.yaml:1: << merges mappings; write an alias of one, as in <<: *other, or a list of them"),
        ("stop: {<<: [{grace: 5s}, 5]}", "clicks.yaml:1: << merges mappings; write an alias of one, as in <<: *other, or a list of them"),
        ("stop: &a {<<: *a}", "clicks.yaml is nested without end; take out anchors that hold themselves"),
        ("[" * 1000, "clicks.yaml is nested without end; take out anchors that hold themselves"),
        ("name: &a [*a]", "clicks.yaml is nested without end; take out anchors that hold themselves"),
        ("name: \x01", "clicks.yaml is not YAML: it holds characters that YAML does not allow"),
    ],
)  # fmt: skip
def test_what_is_not_yaml_is_told_with_its_line(problems: Problems, text: str, line: str) -> None:
    assert problems(text) == [line]


def test_a_quoted_merge_key_is_a_key_like_any_other(problem: Problem) -> None:
    assert problem('stop: {"<<": 5}') == "clicks.yaml:6: stop.<< is not a setting; here are grace"


TOO_LARGE = "a config is a page or two, so name the right file, and keep tables in files that model.py reads"


def test_aliases_that_multiply_are_refused(problems: Problems) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert problems("\n".join(lines)) == [
        f"clicks.yaml holds more than 50,000 keys and values, its aliases written out; {TOO_LARGE}"
    ]


def test_a_file_that_is_no_config_is_refused_by_its_size(problems: Problems) -> None:
    unknown_keys = "".join(f"key{number}: 1\n" for number in range(200_000))
    assert problems(unknown_keys) == [f"clicks.yaml is larger than 1 MiB; {TOO_LARGE}"]


def test_of_very_many_problems_the_first_are_listed(problems: Problems) -> None:
    lines = problems("".join(f"xyzzy{number}: 1\n" for number in range(200)))
    assert len(lines) == 51
    assert lines[0].startswith("clicks.yaml:1: xyzzy0 is not a setting")
    assert lines[-1] == "clicks.yaml: and 156 problems more"
    assert len(problems("a: 1\n" * 200)) == 50


def test_a_file_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.yaml", {})
    assert str(caught.value) == (
        f"{tmp_path / 'none.yaml'} cannot be read: no such file or directory; name the config file with -c FILE"
    )


def test_a_file_that_is_not_text_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match=r"a\.yaml is not UTF-8 text \(byte 6\); save it as UTF-8"):
        load(tmp_path / "a.yaml", {})


CANARY = "canary-7f3a"


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (f"name: a\nkafka: {{sasl_password: {CANARY}}}", {}),
        (f"name: a\nkafka: {{passwort: {{x: {CANARY}}}}}", {}),
        (f"name: a\nkafka: {{sasl_password: '{CANARY}", {}),
        (f"name: a\nkafka: {{bootstrap_servers: ['user:{CANARY}@b:1']}}", {}),
        (f"name: a\nkafka: {{sasl_password_file: {{x: {CANARY}}}, ssl_key_password_file: [{CANARY}]}}", {}),
        ("name: a", {"MILLRACE_KAFKA__SASL_PASSWORD": CANARY}),
        ("name: a", {"MILLRACE_KAFKAA__SASL_PASSWORD": CANARY}),
    ],
)
def test_a_secret_in_the_wrong_place_is_never_quoted(problems: Problems, text: str, environ: dict[str, str]) -> None:
    assert CANARY not in "\n".join(problems(text, **environ))
