"""The pod that kustomize renders, run by hand: its containers one after another, as an engine and a kubelet would."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.deploy.dockerfile import stages_of
from tests.deploy.manifests import ROOT, Object, config, container, pod_of
from tests.deploy.sandbox import Mount, Sandbox, inner_process

_READABLE = 0o644


class Pod:
    """One pod. Its volumes lie in `folder`: another pod with the same one finds what is on them."""

    def __init__(
        self,
        folder: Path,
        objects: Sequence[Object],
        *,
        tokens: Mapping[str, str],
        further: Mapping[str, str],
        kind: str = "StatefulSet",
    ) -> None:
        self.objects, self.spec = objects, pod_of(objects, kind=kind)["spec"]
        self._folder, self._further, self._kind = folder, further, kind
        self._image = stages_of(ROOT / "Dockerfile")["cpu"]
        if kind == "StatefulSet":
            self.checkpoints = self.volume("checkpoints", writable=True)
            self._fill("tokens", tokens)
        self._fill("config", config(objects))

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a container."""
        one = container(self.objects, name, self._kind)
        entrypoint = one.get("command", self._image.words("ENTRYPOINT"))
        root = Path(tempfile.mkdtemp(prefix=f"root-{name}-", dir=self._folder))
        return self._sandbox(one).start([*entrypoint, *one.get("args", ())], root, self._log(name))

    def execute(
        self, started: subprocess.Popen[bytes], command: str, name: str = "millrace"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command beside the process of a container, as `kubectl exec` does."""
        inner = inner_process(started)
        assert inner is not None, self.said(name)
        return self._sandbox(container(self.objects, name, self._kind)).run_beside(inner, shlex.split(command))

    def said(self, name: str) -> str:
        """Return what a container has printed."""
        return self._log(name).read_text()

    def _sandbox(self, one: Object) -> Sandbox:
        path = {"PATH": self._image.pairs("ENV")["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")}
        given = {entry["name"]: entry["value"] for entry in one.get("env", ())}
        return Sandbox(
            user=self.spec["securityContext"]["runAsUser"],
            group=self.spec["securityContext"]["runAsGroup"],
            environment={**self._image.pairs("ENV"), **path, **given, **self._further},
            workdir=self._image.texts("WORKDIR")[-1],
            mounts=[*self._mounts(one)],
        )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _mounts(self, one: Object) -> Iterator[Mount]:
        for mount in one["volumeMounts"]:
            read_only = mount.get("readOnly", False)
            source = self.volume(mount["name"], writable=not read_only)
            yield Mount(source=source, target=mount["mountPath"], read_only=read_only)

    def volume(self, name: str, *, writable: bool) -> Path:
        """A folder as a kubelet hands it in: root's, and the pod's group may write to it where anybody may."""
        volume = self._folder / "volumes" / name
        if not volume.exists():
            volume.mkdir(parents=True)
            os.chown(volume, 0, self.spec["securityContext"]["fsGroup"])
            volume.chmod(0o2770 if writable else 0o2750)
        return volume

    def _fill(self, name: str, files: Mapping[str, str]) -> None:
        """Lay files out as a kubelet does: links into a folder that it can exchange as a whole."""
        volume = self.volume(name, writable=False)
        if (volume / "..data").is_symlink():
            return
        (volume / "..1").mkdir()
        (volume / "..data").symlink_to("..1")
        for file, text in files.items():
            (volume / "..1" / file).write_text(text)
            (volume / "..1" / file).chmod(self._mode(name))
            (volume / file).symlink_to(f"..data/{file}")

    def _mode(self, name: str) -> int:
        (volume,) = [one for one in self.spec["volumes"] if one["name"] == name]
        return int(volume.get("secret", {}).get("defaultMode", _READABLE))
