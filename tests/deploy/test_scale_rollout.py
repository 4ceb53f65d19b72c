"""A rollout of a group played through, in many orders: the controllers of the manifests' sets, kubelets, and workers.

A controller replaces one pod of its set at a time, the last first, and the next once all of the set are ready. Workers
meet when all wait; of different versions, they refuse each other, end, and are started again.
"""

from random import Random

import pytest

from tests.deploy.manifests import K8S, of_kind, rendered

STEPS = 20_000
ORDERS = range(50)


class Rollout:
    """The pods of one group, by set and ordinal."""

    def __init__(self, others: int, *, waiting_is_ready: bool) -> None:
        sets = {
            one["metadata"]["name"]: one["spec"] for one in of_kind(rendered(K8S / "overlays" / "scale"), "StatefulSet")
        }
        assert not any("updateStrategy" in spec or "minReadySeconds" in spec for spec in sets.values())
        assert sets["millrace"]["replicas"] == 1
        self._sets = {"millrace": 1, "millrace-workers": others}
        self._pods = [(name, number) for name, count in self._sets.items() for number in range(count)]
        self._ready = {"learning", "waiting"} if waiting_is_ready else {"learning"}
        self.new = dict.fromkeys(self._pods, False)
        self.state = dict.fromkeys(self._pods, "learning")

    @property
    def done(self) -> bool:
        """Whether all are new and learn."""
        return all(self.new.values()) and set(self.state.values()) == {"learning"}

    def control(self, name: str) -> None:
        """Let the controller of a set replace the next pod, if it may."""
        pods = [(name, number) for number in range(self._sets[name])]
        old = [pod for pod in pods if not self.new[pod]]
        if old and all(self.state[pod] in self._ready for pod in pods):
            self.new[old[-1]], self.state[old[-1]] = True, "starting"
            for pod, state in self.state.items():
                if state == "learning":
                    self.state[pod] = "waiting"  # it has lost one, and begins again

    def come_up(self, random: Random) -> None:
        """Let one that starts, or that was started again, come to where it waits for the others."""
        if down := [pod for pod, state in self.state.items() if state in ("starting", "ended")]:
            self.state[random.choice(down)] = "waiting"

    def meet(self) -> None:
        """Let all meet, where all wait."""
        if set(self.state.values()) == {"waiting"}:
            found = "learning" if len(set(self.new.values())) == 1 else "ended"
            self.state = dict.fromkeys(self._pods, found)

    def ends(self, random: Random) -> bool:
        """Return whether it comes to its end, whichever happens next."""
        for _ in range(STEPS):
            what = random.randrange(len(self._sets) + 2)
            if what < len(self._sets):
                self.control(list(self._sets)[what])
            elif what == len(self._sets):
                self.come_up(random)
            else:
                self.meet()
            if self.done:
                return True
        return False


@pytest.mark.parametrize("others", [1, 2, 4])
def test_a_rollout_of_a_group_ends_in_any_order_of_events(others: int) -> None:
    for seed in ORDERS:
        rollout = Rollout(others, waiting_is_ready=True)
        assert rollout.ends(Random(seed)), (seed, rollout.new, rollout.state)


def test_it_would_not_if_a_worker_that_waits_did_not_count_as_ready() -> None:
    assert not Rollout(2, waiting_is_ready=False).ends(Random(1))
