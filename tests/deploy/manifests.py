"""The manifests as kustomize renders them, and what stands where in them."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.programs import program

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
Object = Mapping[str, Any]


@cache
def rendered(folder: Path) -> tuple[Object, ...]:
    """Return what `kubectl apply -k` would send."""
    tool = program("kustomize", "kubectl", how="make tools gets kustomize")
    command = [tool, "build" if tool.name == "kustomize" else "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "nothing deprecated is in use"
    return tuple(YAML(typ="safe").load_all(done.stdout))


def only(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """Return the one object of a kind, or of a kind and a name."""
    (found,) = [one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    return found


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Return all objects of a kind."""
    return [one for one in objects if one["kind"] == kind]


def pod_of(objects: Sequence[Object], name: str | None = None, kind: str = "StatefulSet") -> Object:
    """Return the pod that the stateful set makes: its template. Where there are several, name one."""
    template: Object = only(objects, kind, name)["spec"]["template"]
    return template


def containers(objects: Sequence[Object], name: str | None = None, kind: str = "StatefulSet") -> Iterator[Object]:
    """Yield every container of the pod, the one that runs first included."""
    spec = pod_of(objects, name, kind)["spec"]
    yield from spec["containers"]
    yield from spec.get("initContainers", ())


def container(objects: Sequence[Object], name: str = "millrace", kind: str = "StatefulSet") -> Object:
    """Return one container by its name."""
    (found,) = [one for one in containers(objects, kind=kind) if one["name"] == name]
    return found


def config(objects: Sequence[Object]) -> dict[str, str]:
    """Return the files of the ConfigMap that the pod mounts at /etc/millrace."""
    (volume,) = [one for one in pod_of(objects)["spec"]["volumes"] if one["name"] == "config"]
    files: dict[str, str] = only(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    return files


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a selector of labels, which must not be empty, selects what bears these labels."""
    assert set(selector) == {"matchLabels"}
    wanted: Mapping[str, str] = selector["matchLabels"]
    assert wanted
    return wanted.items() <= labels.items()


def size(text: str) -> int:
    """Return the bytes of a quantity such as 2Gi."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    return int(text[:-2]) * units[text[-2:]]


def with_components(own: Path, *components: str, more: str = "") -> tuple[Object, ...]:
    """Write an overlay of a user's own, with these components, into a folder beside `k8s`, and render it."""
    named = ", ".join(f"../k8s/components/{one}" for one in components)
    (own / "kustomization.yaml").write_text(
        f"namespace: fraud\nresources: [../k8s/base]\ncomponents: [{named}]\n{more}"
    )
    rendered.cache_clear()
    return rendered(own)
