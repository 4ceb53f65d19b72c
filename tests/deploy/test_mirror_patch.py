"""The mirror in a bucket, as docs/kubernetes.md patches the trainer: its check and its pod know it and may reach it."""

import shutil
from pathlib import Path

import kubernetes_validate

from millrace.app.settings import load
from tests.deploy.manifests import K8S, config, containers, only, with_components
from tests.deploy.pages import blocks

(MIRROR,) = blocks("A mirror of the checkpoints in a bucket", "yaml")


def test_the_docs_give_the_trainer_a_mirror_in_a_bucket(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "own").mkdir()
    objects = with_components(tmp_path / "own", more=MIRROR)
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
    for name, text in config(objects).items():
        (tmp_path / name).write_text(text)
    for one in containers(objects):
        environ = {entry["name"]: entry["value"] for entry in one["env"]}
        assert load(tmp_path / "millrace.yaml", environ).settings.checkpoints.mirror == "s3://my-bucket/models"
    assert {"ports": [{"port": 443}]} in only(objects, "NetworkPolicy")["spec"]["egress"]
