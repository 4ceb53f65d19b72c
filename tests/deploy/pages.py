"""What docs/kubernetes.md has its reader type."""

import re

from tests.deploy.manifests import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_THE_POD = "kubectl -n fraud exec millrace-0 -- "


def blocks(heading: str, language: str = "") -> list[str]:
    """Return each block of code of a language below a heading, up to the next heading."""
    parts = _HEADING.split(PAGE)
    below = dict(zip(parts[1::2], parts[2::2], strict=True))[heading]
    return [text for found, text in _BLOCK.findall(below) if found == language]


def commands(heading: str) -> list[str]:
    """Return each command below a heading, on one line."""
    joined = "".join(blocks(heading)).replace("\\\n", " ")
    return [" ".join(line.split()) for line in joined.splitlines()]


def commands_in_the_pod(heading: str) -> list[str]:
    """Return the commands that `kubectl exec` runs in the pod, without `kubectl exec`."""
    return [one.removeprefix(IN_THE_POD) for one in commands(heading) if one.startswith(IN_THE_POD)]
