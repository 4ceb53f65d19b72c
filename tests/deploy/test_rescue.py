"""The components that take the trainer, or the check before it, out of the pod change that alone."""

import copy
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.manifests import K8S, Object, container, containers, only, rendered
from tests.deploy.pages import IN_THE_POD, PAGE, commands, commands_in_the_pod

HEADING = "When no trainer comes up any more"
RESCUE = K8S / "overlays" / "rescue"
OF_A_TRAINER = {"command", "args", "startupProbe", "livenessProbe", "readinessProbe"}


def _without_a_trainer(stateful_set: Object) -> Any:
    bare = copy.deepcopy(dict(stateful_set))
    spec = bare["spec"]["template"]["spec"]
    for one in (*spec["containers"], *spec["initContainers"]):
        for field in OF_A_TRAINER:
            one.pop(field, None)
    return bare


def test_all_that_it_changes_is_what_the_containers_run_and_who_probes_them() -> None:
    base, rescue = rendered(K8S / "base"), rendered(RESCUE)
    assert [one for one in rescue if one["kind"] != "StatefulSet"] == [
        one for one in base if one["kind"] != "StatefulSet"
    ]
    ours, its = only(base, "StatefulSet"), only(rescue, "StatefulSet")
    assert ours != its
    assert _without_a_trainer(ours) == _without_a_trainer(its)


def test_it_is_valid_to_the_last_field() -> None:
    for one in rendered(RESCUE):
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_nothing_of_millrace_runs_in_it_and_no_probe_ends_it() -> None:
    for one in containers(rendered(RESCUE)):
        assert OF_A_TRAINER & one.keys() == {"command"}
        assert "millrace" not in " ".join(one["command"])


def _with_components(folder: Path, components: tuple[str, ...]) -> tuple[Object, ...]:
    """Render the base with components, in this order."""
    shutil.copytree(K8S, folder / "k8s")
    own = folder / "own"
    own.mkdir()
    named = "".join(f"  - ../k8s/components/{one}\n" for one in components)
    (own / "kustomization.yaml").write_text(f"resources: [../k8s/base]\ncomponents:\n{named}")
    return rendered(own)


@pytest.mark.parametrize("order", [("gpu", "rescue"), ("rescue", "gpu")], ids="+".join)
def test_no_order_of_components_brings_the_trainer_back(tmp_path: Path, order: tuple[str, ...]) -> None:
    objects = _with_components(tmp_path, order)
    for one in containers(objects):
        assert OF_A_TRAINER & one.keys() == {"command"}
        assert one["image"].endswith("-gpu")
    assert container(objects)["command"] == container(rendered(RESCUE))["command"]


@pytest.mark.parametrize("order", [("gpu", "no-validate"), ("no-validate", "gpu")], ids="+".join)
def test_a_pod_that_is_not_checked_before_its_start_differs_in_that_alone(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    unchecked, checked = (_with_components(tmp_path / name, which) for name, which in (("a", order), ("b", ("gpu",))))
    of_unchecked, of_checked = only(unchecked, "StatefulSet"), copy.deepcopy(dict(only(checked, "StatefulSet")))
    (init,) = of_checked["spec"]["template"]["spec"]["initContainers"]
    del init["args"]
    init["command"] = ["true"]
    assert dict(of_unchecked) == of_checked
    assert "`../k8s/components/no-validate`" in PAGE


def test_the_docs_name_it_and_wait_for_it_before_they_use_it() -> None:
    assert "`../k8s/components/rescue`" in PAGE
    name = only(rendered(RESCUE), "StatefulSet")["metadata"]["name"]
    apply, wait, *executed = commands(HEADING)
    assert apply == "kubectl apply -k ."
    assert wait == f"kubectl -n fraud rollout status statefulset/{name}"
    assert executed == [f"{IN_THE_POD}{one}" for one in commands_in_the_pod(HEADING)]
