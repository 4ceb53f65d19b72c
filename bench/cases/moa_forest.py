"""MOA's adaptive random forest on a file of records, test-then-train: each record is guessed, then learnt, in order.

Ten trees, everything else at MOA's defaults. Its jars are fetched once, as Kafka's are; MOA is under the GPL, and only
run. Numbers are numbers, truth values too, as the product takes them from JSON. Prints the share that it guessed right,
of all and along the stream, and the CPU that it says it took.
"""

import argparse
import csv
import json
import tempfile
from itertools import pairwise
from pathlib import Path

import rig
from drafted_stream import WINDOW

from millrace.app.tools.local_broker.jars import JarSet, JavaProgram, cached_jars

VERSION = "2024.07.0"
MOA = JarSet(
    title=f"MOA {VERSION}",
    folder=f"moa-{VERSION}",
    coordinates=(f"nz.ac.waikato.cms.moa:moa:{VERSION}", "nz.ac.waikato.cms.weka:weka-dev:3.9.6"),
    sha256={
        "moa-2024.07.0.jar": "e836320714ad3bb0fde77bf9c798f770ce4f2c1d3e9cd7579ed2ac6f63ce4434",
        "weka-dev-3.9.6.jar": "fddae1352375e1518d02ab6e6267e4ab1c9eb04ebc4c3072ea5e9ddd8092d870",
    },
)
"""What its forest needs of all that it names."""
AT_MOST_S = 900.0
RIGHT, CPU_S = "classifications correct (percent)", "evaluation time (cpu seconds)"
SEEN = "learning evaluation instances"


def arff(lines: list[str]) -> str:
    """The records in MOA's format."""
    rows = [json.loads(line) for line in lines]
    classes = sorted({str(row["y"]) for row in rows})
    features = [name for name in rows[0] if name != "y"]
    head = [f"@attribute f{number} numeric" for number in range(len(features))]
    body = [",".join([*(repr(float(row[name])) for name in features), str(row["y"])]) for row in rows]
    return "\n".join(["@relation stream", *head, f"@attribute y {{{','.join(classes)}}}", "@data", *body, ""])


def main() -> None:
    """Run it, read what it says last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True, help="a JSON object a line, the label as y")
    given = parser.parse_args()
    lines = given.records.read_text().splitlines()
    rig.STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="moa-", dir=rig.STATE) as name:
        folder = Path(name)
        (folder / "stream.arff").write_text(arff(lines))
        task = (
            "EvaluatePrequential -l (meta.AdaptiveRandomForest -s 10) "
            "-s (ArffFileStream -f stream.arff) -e (BasicClassificationPerformanceEvaluator) "
            f"-i -1 -f {WINDOW} -d out.csv"
        )
        program = JavaProgram(jars=cached_jars(MOA), main="moa.DoTask", arguments=(task,), folder=folder)
        program.run(folder / "log", AT_MOST_S)
        rows = list(csv.DictReader((folder / "out.csv").open()))
    # Each row is of all records up to there.
    right = [0.0, *(float(row[RIGHT]) / 100 * float(row[SEEN]) for row in rows)]
    points = [(after - before) / WINDOW for before, after in pairwise(right)][: len(lines) // WINDOW]
    last = rows[-1]
    rig.report(
        {"accuracy": float(last[RIGHT]) / 100},
        {"records": len(lines), "cpu_us_per_record": float(last[CPU_S]) / len(lines) * 1e6, "curve": points},
    )


if __name__ == "__main__":
    main()
