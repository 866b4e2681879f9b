"""A Kubernetes Job: its creation and state, why it waits, and how its pods have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from ...errors import ClusterError
from .batch_job import Job, JobState, Scheduler

Manifest = dict[str, Any]
KUBERNETES = Scheduler("kubernetes", "Kubernetes", "")
_DISRUPTED = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "EvictionByEvictionAPI": "was evicted from its node",
    "DeletionByTaintManager": "was removed because its node failed, or has a taint that the pod does not tolerate",
    "DeletionByPodGC": "was removed because its node no longer exists",
    "TerminationByKubelet": "was evicted from its node",
}
"""Texts by reason of the condition ``DisruptionTarget``."""


def kubectl(*arguments: str, given: Manifest | None = None) -> str:
    """Return the output of ``kubectl``; raise a `ClusterError` if it fails or is not there."""
    return KUBERNETES.ask(["kubectl", "--request-timeout=15s", *arguments], "" if given is None else json.dumps(given))


class KubernetesJob(Job):
    """A Job, its Service and its Secret, which Kubernetes removes with the Job.

    Parameters
    ----------
    manifests : sequence of dict
        The Job last.
    limit : str
        Of its time; empty: there is none of ours.
    """

    LABEL: ClassVar[str] = "jupyter-dtrain/job"
    """Label of all objects that belong together."""

    def __init__(self, manifests: Sequence[Manifest], limit: str) -> None:
        *others, job = manifests
        self.number, self._limit, self._num_pods = job["metadata"]["name"], limit, job["spec"]["completions"]
        namespace = job["metadata"].get("namespace")
        self._where = [] if namespace is None else [f"--namespace={namespace}"]
        try:
            created = json.loads(kubectl("create", "-f-", "-ojson", given=_list(manifests)))
            uid = next(each["metadata"]["uid"] for each in created["items"] if each["kind"] == "Job")
            owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": self.number, "uid": uid}
            patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
            kubectl("patch", "-f-", "--type=merge", f"--patch={patch}", given=_list(others))
        except BaseException:
            self.cancel()
            raise

    def state(self) -> JobState:
        """Query the Job and its pods."""
        job, pods = self._found()
        if job is None:
            return JobState(told="DELETED", phase="over", end="was deleted")
        end = next(filter(None, map(self._end_of, pods)), "") or _end_of_job(job)
        if end:
            return JobState(told="ENDED", phase="over", end=end)
        if sum(_container(pod, "running") is not None for pod in pods) >= self._num_pods:
            return JobState(told="RUNNING", phase="runs")
        reason = next(filter(None, map(_why_it_waits, pods)), "") or (self._why_there_are_none(job) if not pods else "")
        return JobState(told="PENDING", phase="waits", reason=reason)

    def why_ended(self, node: str) -> str:
        """Return how the pod with this host name, or else the Job, has ended."""
        try:
            job, pods = self._found()
        except ClusterError:  # Kubernetes cannot be asked
            return ""
        if job is None:
            return f"its job {self.number} was deleted"
        own = [pod for pod in pods if node and _host_name(pod, self.number) == node] or ([] if node else pods)
        ends = ((pod["metadata"]["name"], self._end_of(pod)) for pod in own)
        found = next((f"its pod {name} {end}" for name, end in ends if end), "")
        return found or (f"its job {self.number} {end}" if (end := _end_of_job(job)) else "")

    def cancel(self) -> None:
        """Delete all objects of the job."""
        objects = [f"{kind}/{self.number}" for kind in ("job", "service", "secret")]
        try:
            kubectl("delete", *objects, *self._where, "--ignore-not-found", "--wait=false")
        except ClusterError:
            pass  # Kubernetes cannot be asked: the agents end by themselves, and the ended Job is removed later

    def log(self) -> list[str]:
        """Return the last output of the pods."""
        try:
            return kubectl("logs", f"--selector={self.LABEL}={self.number}", "--tail=20", *self._where).splitlines()
        except ClusterError:  # nothing has run yet
            return []

    def _found(self) -> tuple[Manifest | None, list[Manifest]]:
        told = json.loads(kubectl("get", "job,pod", f"--selector={self.LABEL}={self.number}", *self._where, "-ojson"))["items"]
        return next((each for each in told if each["kind"] == "Job"), None), [each for each in told if each["kind"] == "Pod"]

    def _why_there_are_none(self, job: Manifest) -> str:
        """Return why Kubernetes has created no pods: a quota, or a queue that holds the Job."""
        if job["spec"].get("suspend"):
            return "suspended, such as by a queue: it starts when the queue resumes it"
        of_job = f"--field-selector=involvedObject.kind=Job,involvedObject.name={self.number},type=Warning"
        events = json.loads(kubectl("get", "events", of_job, *self._where, "-ojson"))["items"]
        return str(events[-1].get("message", "")) if events else ""

    def _end_of(self, pod: Manifest) -> str:
        """Return how a pod has ended, as a continuation of its name; empty if it has not."""
        status, disrupted = pod["status"], _condition(pod, "DisruptionTarget")
        if disrupted is not None:
            return _DISRUPTED.get(disrupted.get("reason", ""), f"was removed ({disrupted.get('message', 'without a reason')})")
        if status.get("reason") == "DeadlineExceeded":
            return f"is out of time: its limit was {self._limit} (`--time`)"
        if (ended := _container(pod, "terminated")) is not None:
            if ended.get("reason") == "OOMKilled":
                return "has exceeded its memory limit: request more with `--mem`"
            return f"has ended ({ended.get('message') or ended.get('reason', 'Error')}, exit code {ended.get('exitCode')})"
        if status.get("phase") == "Failed":
            return f"has ended ({status.get('message') or status.get('reason', 'Failed')})"
        return "was deleted" if "deletionTimestamp" in pod["metadata"] else ""


def _list(manifests: Sequence[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(manifests)}


def _condition(found: Manifest, kind: str, status: str = "True") -> Manifest | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind and each["status"] == status), None)


def _container(pod: Manifest, state: str) -> Manifest | None:
    """Return the details of the first container of a pod that is in this state."""
    told = (container.get("state", {}).get(state) for container in pod["status"].get("containerStatuses", []))
    return next((each for each in told if each is not None), None)


def _host_name(pod: Manifest, job: str) -> str:
    return f"{job}-{pod['metadata'].get('annotations', {}).get('batch.kubernetes.io/job-completion-index', '')}"


def _why_it_waits(pod: Manifest) -> str:
    if (unscheduled := _condition(pod, "PodScheduled", "False")) is not None:
        return f"{unscheduled.get('reason', '')}: {unscheduled.get('message', '')}"
    waiting = _container(pod, "waiting")
    return "" if waiting is None else ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))


def _end_of_job(job: Manifest) -> str:
    failed = _condition(job, "Failed")
    return "" if failed is None else f"has ended ({failed.get('message') or failed.get('reason')})"
