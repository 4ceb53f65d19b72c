"""Topics as companies have them, drafted by `millrace init` and learnt: how good the draft is, beside a usual model.

    python bench/topics.py [--only fraud,order] [--bootstrap HOST:PORT] [--seed 1] [--scale 1.0]

The draft gets nothing by hand but what names the label and the schema. Its score is that of the whole stream, each
record scored before it is learnt; the other model is one of scikit-learn on features made by hand, fitted on the first
half and scored on the second. Needs scikit-learn's environment, which `make bench-topics` builds.
"""

import argparse
import asyncio
import io
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent / "cases"))

import rig
from aiokafka import AIOKafkaProducer
from compare import PEERS
from run import broker

from millrace.app.service.service import Running, RunOptions
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.kafka.positions import Now

Floats = npt.NDArray[np.float64]
PARTITIONS = 2
BEGAN_MS = 1_790_000_000_000


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Records of a topic, and the same as numbers for the model that it is compared with."""

    values: Sequence[bytes]
    label: str
    metric: str
    """By which both are scored: `auc`, `accuracy` or `mae`."""
    by_hand: Any
    """A column a feature, or texts."""
    truth: npt.NDArray[Any]
    keys: Sequence[bytes] = ()
    options: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def chance(logits: Floats, draw: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Draw outcomes of these log odds."""
    return draw.random(len(logits)) < 1 / (1 + np.exp(-logits))


def one_hot(numbers: npt.NDArray[np.int64], size: int) -> Floats:
    """Return a column for each number."""
    return np.eye(size)[numbers]


def lines(objects: Sequence[Any]) -> list[bytes]:
    """Return them as JSON."""
    return [json.dumps(one).encode() for one in objects]


def order(count: int, draw: np.random.Generator) -> Topic:
    """Orders with their lines, nested; is it returned?"""
    country, channel, hour = (draw.integers(size, size=count) for size in (12, 4, 24))
    age, each = draw.integers(18, 80, count), draw.integers(1, 6, count)
    prices = draw.lognormal(3, 1, (count, 5)).round(2)
    total = (prices * (np.arange(5) < each[:, None])).sum(1).round(2)
    of_country, of_channel = draw.normal(0, 0.8, 12), draw.normal(0, 0.5, 4)
    logits = of_country[country] + of_channel[channel] + 0.5 * (np.log(total) - 4) + 0.5 * np.sin(hour * math.tau / 24)
    returned = chance(logits - 0.7, draw)
    made = [
        {
            "order_id": f"o-{at}-{draw.integers(1 << 30)}",
            "created": f"2026-11-{1 + at % 25:02}T{hour[at]:02}:{at % 60:02}:00Z",
            "buyer": {"country": f"C{country[at]}", "age": int(age[at])},
            "channel": ["web", "app", "shop", "mail"][channel[at]],
            "currency": "EUR",
            "total": float(total[at]),
            "lines": [{"sku": f"s{at % 300}", "price": float(prices[at, line])} for line in range(each[at])],
            "returned": bool(returned[at]),
        }
        for at in range(count)
    ]
    angle = hour * math.tau / 24
    by_hand = np.column_stack(
        [one_hot(country, 12), one_hot(channel, 4), np.log(total), age / 50, each, np.sin(angle), np.cos(angle)]
    )
    options = ("--event-time", "created")
    return Topic(values=lines(made), label="returned", metric="auc", by_hand=by_hand, truth=returned, options=options)


def debezium(count: int, draw: np.random.Generator) -> Topic:
    """Loans as a change data capture tells them, with an envelope; is it late?"""
    income, amount = draw.lognormal(10, 0.5, count).round(2), draw.lognormal(9, 0.8, count).round(2)
    term, purpose = draw.choice([12, 24, 36, 60], count), draw.integers(8, size=count)
    of_purpose = draw.normal(0, 0.7, 8)
    late = chance(1.2 * (np.log(amount) - np.log(income)) + of_purpose[purpose] + 0.02 * (term - 30), draw)
    names = ["car", "home", "boat", "school", "health", "trip", "debt", "other"]
    made = []
    for at in range(count):
        after = {
            "id": at,
            "income": float(income[at]),
            "amount": float(amount[at]),
            "term": int(term[at]),
            "purpose": names[purpose[at]],
            "late": bool(late[at]),
        }
        source = {"version": "2.7.0", "connector": "postgresql", "db": "bank", "schema": "public", "lsn": 90_000 + at}
        before = {**after, "late": not late[at] if at % 5 else bool(late[at])} if at % 3 == 0 else None
        op = "u" if before else "c"
        made.append({"before": before, "after": after, "source": source, "op": op, "ts_ms": BEGAN_MS + at})
    by_hand = np.column_stack([np.log(income), np.log(amount), term / 36, one_hot(purpose, 8)])
    return Topic(values=lines(made), label="after.late", metric="auc", by_hand=by_hand, truth=late)


AVRO = {
    "type": "record",
    "name": "Ride",
    "fields": [
        {"name": "km", "type": "double"},
        {"name": "passengers", "type": "int"},
        {"name": "zone", "type": {"type": "enum", "name": "Zone", "symbols": ["A", "B", "C", "D", "E", "F"]}},
        {
            "name": "extras",
            "type": {"type": "record", "name": "Extras", "fields": [{"name": "bags", "type": ["null", "int"]}]},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "fare", "type": "double"},
    ],
}


def avro(count: int, draw: np.random.Generator) -> Topic:
    """Rides in Avro, by their schema; what do they cost?"""
    import fastavro

    km, people = draw.lognormal(1.5, 0.6, count), draw.integers(1, 6, count)
    zone, bags = draw.integers(6, size=count), draw.integers(-1, 4, count)
    base, rate = draw.uniform(2, 9, 6), draw.uniform(1, 3, 6)
    fare = base[zone] + rate[zone] * km**0.9 + np.maximum(bags, 0) + (people > 4) * 6 + draw.normal(0, 0.5, count)
    parsed, values = fastavro.parse_schema(dict(AVRO)), []
    for at in range(count):
        out = io.BytesIO()
        row = {
            "km": float(km[at]),
            "passengers": int(people[at]),
            "zone": "ABCDEF"[zone[at]],
            "extras": {"bags": None if bags[at] < 0 else int(bags[at])},
            "at": BEGAN_MS + at,
            "fare": float(fare[at]),
        }
        fastavro.schemaless_writer(out, parsed, row)
        values.append(out.getvalue())
    by_hand = np.column_stack([km, people, one_hot(zone, 6), np.maximum(bags, 0), bags < 0])
    options = ("--schema", "ride.avsc", "--event-time", "at")
    files = {"ride.avsc": json.dumps(AVRO)}
    return Topic(values=values, label="fare", metric="mae", by_hand=by_hand, truth=fare, options=options, files=files)


PROTO = """
syntax = "proto3";
enum Mode { IDLE = 0; HEAT = 1; COOL = 2; DRY = 3; }
message Reading { string device = 1; Mode mode = 2; double outside = 3; optional double humidity = 4;
  map<string, double> rooms = 5; double watts = 6; }
"""


def protobuf(count: int, draw: np.random.Generator) -> Topic:
    """Readings in Protobuf, with an enum, a map and a field that may lack; how many kilowatts?"""
    from google.protobuf.message_factory import GetMessageClass

    from millrace.pipelines.formats.shared.descriptors import compiled_texts, message_of

    mode, outside = draw.integers(4, size=count), draw.normal(12, 8, count)
    humid = np.where(draw.random(count) < 0.2, np.nan, draw.uniform(0.2, 0.9, count))
    rooms = draw.normal(20, 2, (count, 2))
    gain = np.array([0.05, 0.2, 0.12, 0.08])[mode]
    watts = gain * np.abs(outside - rooms.mean(1)) + np.nan_to_num(humid) * (mode == 3) + draw.normal(0, 0.08, count)
    reading = GetMessageClass(message_of(compiled_texts({"o.proto": PROTO}, "o.proto", "bench"), "Reading"))
    values = []
    for at in range(count):
        one = reading(
            device=f"d{at % 40}",
            mode=int(mode[at]),
            outside=outside[at],
            rooms={"hall": rooms[at, 0], "bed": rooms[at, 1]},
            watts=watts[at],
        )
        if not math.isnan(humid[at]):
            one.humidity = humid[at]
        values.append(one.SerializeToString())
    by_hand = np.column_stack([one_hot(mode, 4), outside, rooms, np.nan_to_num(humid), np.isnan(humid)])
    options, files = ("--schema", "reading.proto", "--message", "Reading"), {"reading.proto": PROTO}
    return Topic(values=values, label="watts", metric="mae", by_hand=by_hand, truth=watts, options=options, files=files)


def pumps(count: int, draw: np.random.Generator) -> Topic:
    """Readings of 60 pumps; it is the rise over the last ones that tells a failure, which no record shows alone."""
    devices = 60
    level, drift = draw.normal(0, 1, devices), np.zeros(devices)
    made, keys, truth, seen = [], [], [], []
    for at in range(count):
        device = int(draw.integers(devices))
        drift[device] = 0.85 * drift[device] + draw.normal(0, 0.12)
        level[device] = 0.995 * level[device] + drift[device]
        fails = bool(draw.random() < 1 / (1 + math.exp(-(10 * drift[device] - 1))))
        pressure = draw.normal(5, 1)
        made.append(
            {
                "pump": f"p{device:02}",
                "vibration": round(level[device] + draw.normal(0, 0.05), 4),
                "pressure": round(pressure, 3),
                "at": BEGAN_MS + 1000 * at,
                "fails": fails,
            }
        )
        keys.append(f"p{device:02}".encode())
        truth.append(fails)
        seen.append((made[-1]["vibration"], pressure))
    return Topic(
        values=lines(made),
        label="fails",
        metric="auc",
        by_hand=np.array(seen),
        truth=np.array(truth),
        keys=keys,
        options=("--event-time", "at"),
    )


def fraud(count: int, draw: np.random.Generator) -> Topic:
    """Payments, of which one in 670 is a fraud."""
    amount, hour = draw.lognormal(3, 1.2, count).round(2), draw.integers(24, size=count)
    shop, country, recent = draw.integers(40, size=count), draw.integers(30, size=count), draw.poisson(1.5, count)
    of_shop, of_country = draw.normal(0, 0.8, 40), draw.normal(0, 0.6, 30)
    logits = of_shop[shop] + of_country[country] + 0.6 * (np.log(amount) - 3) + 0.35 * recent + 0.8 * (hour < 6)
    cut = np.quantile(logits + draw.logistic(0, 1, count), 1 - 1 / 670)
    fraudulent = logits + draw.logistic(0, 1, count) > cut
    made = [
        {
            "token": f"t{draw.integers(50_000)}",
            "amount": float(amount[at]),
            "hour": int(hour[at]),
            "shop": int(shop[at]),
            "country": f"c{country[at]}",
            "last_hour": int(recent[at]),
            "fraud": int(fraudulent[at]),
        }
        for at in range(count)
    ]
    by_hand = np.column_stack([np.log(amount), hour < 6, one_hot(shop, 40), one_hot(country, 30), recent])
    return Topic(values=lines(made), label="fraud", metric="auc", by_hand=by_hand, truth=fraudulent)


def reviews(count: int, draw: np.random.Generator) -> Topic:
    """Texts of five classes."""
    words = np.array([f"w{number}" for number in range(2000)])
    common = 1 / np.arange(1, 2001) ** 0.8
    of_class = [common * draw.lognormal(0, 0.55, 2000) for _ in range(5)]
    kinds = draw.choice(5, count, p=[0.4, 0.25, 0.15, 0.12, 0.08])
    texts = [
        " ".join(draw.choice(words, draw.integers(12, 40), p=of_class[kind] / of_class[kind].sum())) for kind in kinds
    ]
    names = ["praise", "price", "delivery", "broken", "other"]
    made = [
        {"body": text, "stars": int(draw.integers(1, 6)), "topic": names[k]}
        for text, k in zip(texts, kinds, strict=True)
    ]
    options = ("--features", "body,stars")
    return Topic(values=lines(made), label="topic", metric="accuracy", by_hand=texts, truth=kinds, options=options)


def cloudevents(count: int, draw: np.random.Generator) -> Topic:
    """Sessions in CloudEvents' envelope; does it end in a purchase?"""
    seconds, pages = draw.exponential(90, count).round(1), draw.poisson(6, count)
    source, device = draw.integers(9, size=count), draw.integers(3, size=count)
    of_source = draw.normal(0, 0.7, 9)
    bought = chance(of_source[source] + 0.3 * np.log1p(seconds) + 0.12 * pages - 0.4 * (device == 1) - 2.4, draw)
    made = [
        {
            "specversion": "1.0",
            "id": f"{draw.integers(1 << 60):x}",
            "type": "shop.session.ended",
            "source": "/web",
            "datacontenttype": "application/json",
            "time": f"2026-11-20T{at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}Z",
            "data": {
                "seconds": float(seconds[at]),
                "pages": int(pages[at]),
                "campaign": f"k{source[at]}",
                "device": ["phone", "tablet", "desk"][device[at]],
                "bought": bool(bought[at]),
            },
        }
        for at in range(count)
    ]
    by_hand = np.column_stack([np.log1p(seconds), pages, one_hot(source, 9), one_hot(device, 3)])
    options = ("--event-time", "time")
    return Topic(values=lines(made), label="data.bought", metric="auc", by_hand=by_hand, truth=bought, options=options)


def flights(count: int, draw: np.random.Generator) -> Topic:
    """Rows of CSV with a header line among them, divided by semicolons; how late is the departure?"""
    carrier, hour, miles = draw.integers(8, size=count), draw.integers(5, 24, count), draw.gamma(3, 250, count)
    of_carrier = draw.normal(0, 4, 8)
    late = 8 + of_carrier[carrier] + 0.9 * (hour - 12) + 0.004 * miles + draw.gumbel(0, 3, count)
    rows = [b"carrier;hour;miles;dep_delay"]
    rows += [f"X{carrier[at]};{hour[at]};{miles[at]:.0f};{late[at]:.2f}".encode() for at in range(count)]
    by_hand = np.column_stack([one_hot(carrier, 8), hour, miles / 100])
    options = ("--columns", "carrier,hour,miles,dep_delay")
    return Topic(values=rows, label="dep_delay", metric="mae", by_hand=by_hand, truth=late, options=options)


TOPICS: Mapping[str, tuple[Callable[[int, np.random.Generator], Topic], int]] = {
    "order": (order, 60_000),
    "debezium": (debezium, 60_000),
    "avro": (avro, 40_000),
    "protobuf": (protobuf, 40_000),
    "pumps": (pumps, 60_000),
    "fraud": (fraud, 200_000),
    "reviews": (reviews, 40_000),
    "cloudevents": (cloudevents, 40_000),
    "flights": (flights, 40_000),
}
_PEER = next(peer for peer in PEERS if peer.name == "scikit_learn")


async def send(topic: Topic, bootstrap: str, name: str) -> None:
    """Write the records in order; those without a key in turn to each partition."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        sent = []
        for at, value in enumerate(topic.values):
            key = topic.keys[at] if topic.keys else None
            sent.append(await producer.send(name, value, key=key, partition=None if key else at % PARTITIONS))
        await asyncio.gather(*sent)


def drafted(topic: Topic, bootstrap: str, name: str) -> dict[str, float]:
    """Draft the topic, learn it to its end, and return what the metrics say of the whole stream."""
    rig.STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="topic-", dir=rig.STATE) as folder:
        for file, text in topic.files.items():
            (Path(folder) / file).write_text(text)
        command = [str(Path(sys.executable).with_name("millrace")), "init", "--topic", name]
        command += ["--bootstrap-servers", bootstrap, "--label", topic.label, "--json", *topic.options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=rig.START_S, cwd=folder)
        with rig.hosted(f"{folder}/millrace", {}, RunOptions(until=Now())) as host:
            host.ended.wait()
            running = host.service.running
            assert isinstance(running, Running)
            return dict(running.live.look().cumulative)


def usual(topic: Topic) -> dict[str, float]:
    """What scikit-learn comes to, in its own environment."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, x=np.asarray(topic.by_hand), y=topic.truth)
        script = _PEER.folder / "first_half.py"
        command = [str(_PEER.environment / "bin" / "python"), str(script), file.name, topic.metric]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    """Make, learn and compare each topic; one a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TOPICS))
    parser.add_argument("--bootstrap")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    given = parser.parse_args()
    names = given.only.split(",")
    with broker(given.bootstrap) as bootstrap:
        if len(names) > 1:
            for name in names:
                told = ("--only", name, "--bootstrap", bootstrap, "--seed", given.seed, "--scale", given.scale)
                subprocess.run([sys.executable, __file__, *map(str, told)], check=False)
            return
        [name] = names
        make, count = TOPICS[name]
        topic = make(int(count * given.scale), np.random.default_rng(given.seed))
        place = f"unknown-{name}-{given.seed}"
        create_topic(bootstrap, place, PARTITIONS)
        asyncio.run(send(topic, bootstrap, place))
        found = {"topic": name, "metric": topic.metric, "draft": drafted(topic, bootstrap, place)}
        print(json.dumps({**found, "usual": usual(topic)}), flush=True)


if __name__ == "__main__":
    main()
