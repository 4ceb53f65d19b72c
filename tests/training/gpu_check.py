"""All that a GPU changes, tried on those of this machine: `make gpu-check`. Without one it says so, and ends well.

    python -m tests.training.gpu_check             on the GPUs
    python -m tests.training.gpu_check --on cpu    a rehearsal: it shows that this program works, and nothing of a GPU

A process of TensorFlow keeps its devices, so each run of the learner is a process: it learns the same made-up rows,
from a state that another one may have left, and leaves its own. Ends with 1 if anything does not hold.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millrace.app.service.gpus import LIBRARY, Driver

BATCH, BATCHES, FEATURES, UNITS = 1024, 8, 64, 256
BLOCKS, RATE_S = 12, 5.0
CLOSE = 0.05
"""How far two mean losses may be apart, as a share: other kernels sum in another sequence, and bfloat16 has 8 bits."""


def learn(given: Mapping[str, Any]) -> dict[str, Any]:
    """Learn blocks as one process does, and return what came of it."""
    # The parent loads no TensorFlow, and a process's environment chooses its devices.
    import keras

    from millrace.pipelines.schema import Field, Schema
    from millrace.training.checkpoints.parts import PartState
    from millrace.training.model.learner import Learner, LearnerOptions
    from millrace.training.model.setup.strategy import DeviceOptions

    def build() -> Any:
        x = keras.Input((FEATURES,), name="x")
        hidden = keras.layers.Dense(UNITS, "relu")(keras.layers.Dense(UNITS, "relu")(x))
        model = keras.Model(x, keras.layers.Dense(1, "sigmoid", dtype="float32")(hidden))
        model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy", metrics=["accuracy"])
        return model

    keras.config.set_dtype_policy(given["policy"])
    schema = Schema(
        features=(Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),),
        labels=(Field(name="y", source="y", dtype="float32"),),
    )
    devices = DeviceOptions(replicas=given["replicas"], deterministic=given["deterministic"])
    learner = Learner(build, None, LearnerOptions(schema=schema, batch_size=BATCH, devices=devices, seed=7))
    parts = learner.parts
    if given["from"] is not None:
        held = np.load(given["from"], allow_pickle=False)
        for part in parts:
            prefix = f"{part.name}:"
            arrays = {name.removeprefix(prefix): held[name] for name in held.files if name.startswith(prefix)}
            part.restore(PartState(arrays=arrays, facts=json.loads(str(held[part.name]))))
    begun = {f"{part.name}:{name}": np.array(one) for part in parts for name, one in part.snapshot().arrays.items()}
    losses = [loss for number in range(*given["blocks"]) for loss in learner.learn(_rows(number)).result.losses]
    rate = None
    if given["rate"]:
        rows, records, began = _rows(0), 0, time.monotonic()
        while time.monotonic() < began + RATE_S:
            learner.learn(rows)
            records += BATCH * BATCHES
        rate = records / (time.monotonic() - began)
    states = {part.name: part.snapshot() for part in parts}
    ended: Any = {f"{name}:{key}": np.array(one) for name, state in states.items() for key, one in state.arrays.items()}
    if given["to"] is not None:
        facts: Any = {name: json.dumps(dict(state.facts)) for name, state in states.items()}
        np.savez(given["to"], **ended, **facts)
    return {
        "devices": learner.devices,
        "computes": learner.model.layers[1].compute_dtype,
        "first": float(np.mean(losses[:BATCHES])) if losses else None,
        "last": float(np.mean(losses[-BATCHES:])) if losses else None,
        "begun": _digest(begun),
        "ended": _digest(ended),
        "rate": rate,
    }


def _rows(number: int) -> Any:
    import tensorflow as tf

    from millrace.pipelines.stream.blocks import Rows

    random, shape = np.random.default_rng(number), (BATCHES, BATCH)
    x = random.normal(size=(*shape, FEATURES)).astype(np.float32)
    offsets = number * BATCHES * BATCH + np.arange(BATCHES * BATCH).reshape(shape)
    return Rows(
        features={"x": tf.constant(x)},
        labels=tf.constant((x.sum(axis=2) > 0).astype(np.float32)),
        weights=tf.ones(shape),
        offsets=tf.constant(offsets),
        partitions=tf.zeros(shape, tf.int32),
    )


def _digest(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(name.encode() + array.tobytes())
    return found.hexdigest()


def run(on: str, *, blocks: tuple[int, int] = (0, BLOCKS), **given: Any) -> dict[str, Any]:
    """Run the learner in a process of its own, on the GPUs (`gpu`) or without them (`cpu`)."""
    asked = {"policy": "float32", "replicas": None, "deterministic": False, "from": None, "to": None, "rate": False}
    environment = dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": "-1"} if on == "cpu" else {})
    command = [
        sys.executable,
        "-m",
        "tests.training.gpu_check",
        "--learn",
        json.dumps({**asked, "blocks": blocks, **given}),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a run of the learner ended with {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def checks(on: str, folder: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield the name of each check, whether it holds, and what was seen."""
    saved = [str(folder / f"{number}.npz") for number in range(3)]
    cpu, gpu = run("cpu", to=saved[0]), run(on, to=saved[1])
    apart = abs(gpu["last"] - cpu["last"]) / cpu["last"]
    yield (
        "MirroredStrategy",
        all(name.startswith(on.upper()) for name in gpu["devices"]) and gpu["last"] < gpu["first"] and apart < CLOSE,
        f"{', '.join(gpu['devices'])}: the loss falls from {gpu['first']:.3f} to {gpu['last']:.3f}, on the CPU to "
        f"{cpu['last']:.3f}",
    )
    mixed = run(on, policy="mixed_bfloat16")
    apart = abs(mixed["last"] - gpu["last"]) / gpu["last"]
    yield (
        "mixed precision",
        mixed["computes"] == "bfloat16" and apart < CLOSE,
        f"in {mixed['computes']} the loss falls to {mixed['last']:.4f}, in {gpu['computes']} to {gpu['last']:.4f}",
    )
    twice = [run(on, replicas=1, deterministic=True) for _ in range(2)]
    same = twice[0]["ended"] == twice[1]["ended"]
    yield "determinism", same, f"two runs end with {'the same' if same else 'other'} bits on {twice[0]['devices'][0]}"
    there = run(on, blocks=(BLOCKS, 2 * BLOCKS), **{"from": saved[0], "to": saved[2]})
    back = run("cpu", blocks=(2 * BLOCKS, 3 * BLOCKS), **{"from": saved[2]})
    alone = run("cpu", blocks=(BLOCKS, 3 * BLOCKS), **{"from": saved[0]})
    whole = there["begun"] == cpu["ended"] and back["begun"] == there["ended"]
    apart = abs(back["last"] - alone["last"]) / alone["last"]
    yield (
        "checkpoint there and back",
        whole and apart < CLOSE,
        f"the state arrives with {'all' if whole else 'other'} bits; the loss is {back['last']:.4f} afterwards, and "
        f"{alone['last']:.4f} had it stayed on the CPU",
    )
    rates = {name: run(name, rate=True)["rate"] for name in dict.fromkeys((on, "cpu"))}
    told = ", ".join(f"{name} {rate:,.0f} records/s" for name, rate in rates.items())
    yield "rate", True, f"{told} (an MLP of {FEATURES}-{UNITS}-{UNITS}, batches of {BATCH})"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--library", default=LIBRARY, help="the driver's library")
    parser.add_argument("--learn", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.learn is not None:
        _say(json.dumps(learn(given.learn)))
        return 0
    if given.on == "gpu":
        try:
            found = len(Driver(given.library).gpus)
        except OSError:
            _say("no GPU")
            return 0
        seen = run("gpu", blocks=(0, 0))["devices"]
        if not seen[0].startswith("GPU"):
            _say(f"TensorFlow sees none of {found} GPUs: install requirements/gpu.lock")
            return 1
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, holds, detail in checks(given.on, Path(folder)):
            failed += not holds
            _say(f"{'ok' if holds else 'FAIL':4} {name}: {detail}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
