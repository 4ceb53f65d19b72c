"""Writes the templates of the Helm chart out of what kustomize renders: each field has one source, `k8s/base`.

    python -m tests.deploy.chart

writes k8s/chart/templates. A field becomes a value of the chart where `_valued` names it, and nowhere else. A test
compares what is there with what this writes; another has helm render it, and compares that with kustomize's.
"""

import io
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from tests.deploy.manifests import K8S, rendered

CHART = K8S / "chart"
TEMPLATES = CHART / "templates"
_HEAD = "{{- /* Written by `python -m tests.deploy.chart` out of k8s/base; change that, and write this again. */ -}}\n"
_HASHED = re.compile(r"^(millrace-(?:config|kafka))-[0-9a-z]{10}$")
_EXPRESSION = re.compile(r"'?«([^«»]*)»'?")
_STATEMENT = re.compile(r"^( *)(?:- )?(\w+:)? ?'?‹([^‹›]*)›")


def expression(text: str) -> str:
    """Return the mark of a scalar that is a value of the chart."""
    return f"«{text}»"


def files() -> Mapping[str, str]:
    """Return each template by the name of its file."""
    base = [_valued(one) for one in rendered(K8S / "base") if one["kind"] != "Namespace"]
    with_monitoring = rendered(K8S / "overlays" / "monitoring")
    of_base = {(one["kind"], one["metadata"]["name"]) for one in rendered(K8S / "base")}
    added = [one for one in with_monitoring if (one["kind"], one["metadata"]["name"]) not in of_base]
    monitoring = _text([_placed(_escaped(one)) for one in added])
    return {
        "trainer.yaml": _HEAD + _text(base),
        "monitoring.yaml": _HEAD + "{{- if .Values.monitoring }}\n" + monitoring + "{{- end }}\n",
    }


def unhashed(name: str) -> str:
    """Return a name without the hash that kustomize appends."""
    found = _HASHED.match(name)
    return found[1] if found else name


def _placed(one: dict[str, Any]) -> dict[str, Any]:
    """Return an object in the namespace of the release."""
    one["metadata"]["namespace"] = expression(".Release.Namespace")
    return one


def _valued(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of the base with the chart's values in it."""
    one = _placed(_named(deepcopy(dict(given))))
    kind, name = given["kind"], unhashed(given["metadata"]["name"])
    if kind == "ConfigMap":
        one["data"] = {
            "millrace.yaml": expression(".Values.config | toJson"),
            "model.py": expression(".Values.model | toJson"),
        }
    elif kind == "Secret":
        one["data"] = expression(
            f"$data := dict }}}}{{{{- range $name, $content := .Values.{name.removeprefix('millrace-')} }}}}"
            "{{- $_ := set $data $name ($content | b64enc) }}{{- end }}{{ $data | toJson"
        )
    elif kind == "NetworkPolicy":
        one["spec"]["egress"] += ["‹with .Values.egress›", "‹toYaml . | nindent 2›", "‹end›"]
    elif kind == "StatefulSet":
        _pod(one["spec"])
    return one


def _pod(spec: dict[str, Any]) -> None:
    spec["selector"]["matchLabels"] |= {
        # Without it for the name that the base has, whose selector cannot be changed in a cluster.
        '‹if ne .Values.name "millrace"›': None,
        "app.kubernetes.io/instance": expression(".Values.name"),
        "‹end›": None,
    }
    pod = spec["template"]
    # In place of the hashes in the names of what kustomize generates: another content starts the pod anew.
    pod["metadata"]["annotations"]["checksum/config"] = expression(
        "list .Values.config .Values.model .Values.kafka | toJson | sha256sum"
    )
    for which in ("nodeSelector", "tolerations", "affinity", "imagePullSecrets"):
        pod["spec"] |= {f"‹with .Values.{which}›": None, which: "‹toYaml . | nindent 8›", f"‹end› {which}": None}
    pod["spec"]["terminationGracePeriodSeconds"] = expression(".Values.terminationGracePeriodSeconds")
    for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
        # A container keeps its name: only objects of the cluster must differ from model to model.
        container["name"] = container["name"].replace(expression(".Values.name"), "millrace")
        container["image"] = expression('printf "%s:%s" .Values.image.repository .Values.image.tag | quote')
        own = "resources" if container["name"] == "millrace" else "validate.resources"
        container["resources"] = f"‹toYaml .Values.{own} | nindent 10›"
        container |= {"‹with .Values.env›": None, "env": "‹toYaml . | nindent 8›", "‹end›": None}
    (claim,) = spec["volumeClaimTemplates"]
    claim["spec"]["resources"]["requests"]["storage"] = expression(".Values.storage.size | quote")
    claim["spec"] |= {
        "‹with .Values.storage.className›": None,
        "storageClassName": expression(". | quote"),
        "‹end›": None,
    }


def _named(found: Any, key: str = "") -> Any:
    """Return what is found with the name of the release's objects, and their label, in place of the base's."""
    if isinstance(found, dict):
        return {
            inner: value if inner == "app.kubernetes.io/name" else _named(value, inner)
            for inner, value in found.items()
        }
    if isinstance(found, list):
        return [_named(one, key) for one in found]
    named = ("name", "serviceName", "serviceAccountName", "secretName", "app.kubernetes.io/instance")
    if key in named and isinstance(found, str) and found.startswith("millrace"):
        return expression(".Values.name") + unhashed(found).removeprefix("millrace")
    return found


def _text(objects: list[dict[str, Any]]) -> str:
    """Return objects as YAML, with the chart's values for their marks."""
    yaml, out = YAML(), io.StringIO()
    yaml.width = 10_000
    yaml.dump_all([_literal(one) for one in objects], out)
    text = "".join(_line(line) for line in out.getvalue().splitlines(keepends=True))
    return _EXPRESSION.sub(lambda found: "{{ " + found[1] + " }}", text)


def _literal(found: Any) -> Any:
    """Return what is found with texts of several lines to be written as such."""
    if isinstance(found, dict):
        return {key: _literal(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_literal(one) for one in found]
    return LiteralScalarString(found) if isinstance(found, str) and "\n" in found else found


def _line(line: str) -> str:
    """Return a line as helm takes it: a mark that stands alone, or as a key, is a statement; as a value, a block."""
    found = _STATEMENT.match(line)
    if found is None:
        return line
    indent, key, statement = found.groups()
    return f"{indent}{key or ''}\n{indent}  {{{{- {statement} }}}}\n" if key else f"{indent}{{{{- {statement} }}}}\n"


def _escaped(found: Any) -> Any:
    """Return what is found with braces as helm writes them: they are Prometheus' and Grafana's to fill in."""
    if isinstance(found, dict):
        return {key: _escaped(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_escaped(one) for one in found]
    return re.sub(r"\{\{|\}\}", lambda one: '{{ "' + one[0] + '" }}', found) if isinstance(found, str) else found


def main() -> None:
    """Write the templates."""
    for name, text in files().items():
        (TEMPLATES / name).write_text(text)


if __name__ == "__main__":
    main()
