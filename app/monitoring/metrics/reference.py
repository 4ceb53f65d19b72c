"""Write docs/metrics.md out of the catalogue.

python -m millrace.app.monitoring.metrics.reference > docs/metrics.md
"""

import sys

from millrace.app.monitoring.all_figures import places
from millrace.app.monitoring.metrics.catalogue import SECTIONS
from millrace.app.monitoring.metrics.serving_catalogue import SERVING
from millrace.consumers.metric import Metric

_INTRODUCTION = """\
# Metrics

<!-- Written by `python -m millrace.app.monitoring.metrics.reference`; a test compares.
     Change app/monitoring/metrics/catalogue.py instead, or the figures.py of a room. -->

`GET /metrics` on `api.listen` answers in Prometheus' text format, or OpenMetrics if the client asks for it. Each
answer is read from one frozen snapshot, so its numbers belong together, and agree with `/status`, `/lag` and
`/throughput`.

- **Names**: `millrace_`, what is measured, its base unit (seconds, bytes, ratio), `_total` if it only ever grows.
- **`model`** is a label of every series: the config's `name`.
- **Bad** is a value that needs attention; each metric says which. Limits, versions and the like have none.
- **What is not known yet is absent**: no series stands for a value that is not known.
- **Counters** count in this process and do not go back within it, whatever is rewound. A counter that counts since
  checkpoint number 0 goes back with a rewind, and says so.
- **The law**: `millrace_records_fetched_total` = `millrace_records_learnt_total` + `millrace_records_set_aside_total` +
  `millrace_records_skipped_total` + `millrace_records_filtered_total` + `millrace_records_held` +
  `millrace_records_discarded_total`, in every answer; and over the whole history `millrace_history_settled_offsets` =
  the sum of `millrace_history_offsets`.
- **`millrace serve`** is a process of its own, whose `/metrics` has those of
  [the last section](#the-server-of-predictions) and no others.
"""


_PLACES = """\
## In `/status`

Some metrics belong to one capability. `/status` shows the same number at this place, while the capability is in use.

| place | metric |
|---|---|"""
_OF_THE_SERVER = "The server of predictions"
"""A process of its own, `millrace serve`, whose `/metrics` has these and no others."""


def reference() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION]
    for title, metrics in {**SECTIONS, _OF_THE_SERVER: SERVING}.items():
        lines += [f"## {title}\n", "| metric | type | labels besides `model` | meaning, and which value is bad |"]
        lines.append("|---|---|---|---|")
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        lines.append("")
    shown = sorted(f"| `{place}` | `{one.name}` |" for place, one in places() if isinstance(one, Metric))
    return "\n".join([*lines, _PLACES, *shown, ""])


if __name__ == "__main__":
    sys.stdout.write(reference())
