"""Starts clusters in Kubernetes: an Indexed Job, each pod of which is a host with an agent. All is asked for by ``kubectl``."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from .agent_launcher import agent_command, agent_python
from .agent_streams import VARIABLE
from .batch_job import JOB_NAME, Job
from .batch_launcher import BatchLauncher
from .job_requests import cpus_of, nodes_of, seconds_of
from .kubernetes_job import KUBERNETES, KubernetesJob, Manifest, kubectl

CONTAINER = "agent"
"""The container of an agent, by whose name a user's file adds to it."""
GRACE = 10
"""Seconds that what is deleted has to end by itself."""
PLAIN = r"(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w./-]*"
"""Keys that are texts in YAML as they are."""
KEPT = 600
"""Seconds after which Kubernetes removes a Job that has ended, if the notebook's process does not."""


class KubernetesLauncher(BatchLauncher):
    """Starts an agent in each pod of a Job."""

    name, picks_nodes = KUBERNETES.launcher, KUBERNETES.title

    def check_cluster(self, options: ClusterOptions) -> None:
        """Refuse what Kubernetes does not know."""
        super().check_cluster(options)
        for option, value in (("--partition", options.job.partition), ("--account", options.job.account)):
            if value is not None:
                raise UsageError(f"{option}: Kubernetes has none; write labels or a nodeSelector into the file of --launcher-config.")

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the manifests as YAML."""
        return "".join(f"---\n{yaml_of(manifest)}" for manifest in manifests_of(options, invited, f"{JOB_NAME}-…"))

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Create the objects."""
        name = f"{JOB_NAME}-{secrets.token_hex(4)}"
        return KubernetesJob(manifests_of(options, invited, name), options.job.time or "")


def manifests_of(options: ClusterOptions, invited: str, name: str) -> list[Manifest]:
    """Return a Secret for the agents' key, a Service by which pods find each other's names, and the Job, all called `name`."""
    job = _with_file(_job(options, name), options.job.config)
    agents = [container for container in job["spec"]["template"]["spec"]["containers"] if container.get("name") == CONTAINER]
    for agent in agents:
        if not agent.get("image"):
            agent["image"] = _own_image()
    labels = {KubernetesJob.LABEL: name}
    metadata = {"name": name, "labels": labels}
    if namespace := job["metadata"].get("namespace"):
        metadata["namespace"] = namespace
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {VARIABLE: invited}}
    service_spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels}
    return [secret, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service_spec}, job]


def _job(options: ClusterOptions, name: str) -> Manifest:
    asked, nodes = options.job, nodes_of(options.job)
    labels = {KubernetesJob.LABEL: name}
    resources = {"cpu": cpus_of(options, nodes), "memory": asked.mem and f"{asked.mem}i", "nvidia.com/gpu": asked.gpus}
    given = {resource: str(value) for resource, value in resources.items() if value is not None}
    agent: Manifest = {
        "name": CONTAINER,
        "command": [*agent_command(agent_python(options)), "$(JOB_COMPLETION_INDEX)"],
        "env": [{"name": VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": VARIABLE}}}],
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # a container's own has 64 MiB
    }
    if given:
        agent["resources"] = {"requests": given, "limits": given}
    pod: Manifest = {
        "subdomain": name,  # with which the Service gives each pod a name that the others know
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        "automountServiceAccountToken": False,  # what cells run needs nothing of Kubernetes
        "enableServiceLinks": False,
        "containers": [agent],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    if asked.time is not None:
        pod["activeDeadlineSeconds"] = seconds_of(asked.time)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimitPerIndex": 0,  # a pod that ends ends no other, and none comes again: it would find nobody
            "ttlSecondsAfterFinished": KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _with_file(job: Manifest, path: str | None) -> Manifest:
    """Return the Job with what a user's file says: ``kubectl`` merges them, which asks no cluster."""
    if path is None:
        return job
    if not Path(path).expanduser().is_file():
        raise UsageError(f"--launcher-config {path}: there is no such file.")
    try:
        told = kubectl("patch", "--local", "--type=strategic", f"--patch-file={Path(path).expanduser()}", "-f-", "-ojson", given=job)
    except ClusterError as error:
        raise UsageError(f"--launcher-config {path} has to be a part of a Job, in YAML. {error}") from None
    merged: Manifest = json.loads(told)
    return merged


def _own_image() -> str:
    """Return the image of the pod that this process runs in."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        pod: dict[str, Any] = json.loads(kubectl("get", "pod", os.environ.get("HOSTNAME", ""), "-ojson"))
        main = pod["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/default-container")
        containers = pod["spec"]["containers"]
        image: str = next((container for container in containers if container["name"] == main), containers[0])["image"]
        return image
    raise UsageError(
        f"--launcher kubernetes: this notebook does not run in a pod, so give the image of the engines: spec.template.spec.containers with "
        f"`name: {CONTAINER}` and `image: …` in the file of --launcher-config."
    )


def yaml_of(value: Any, indent: int = 0) -> str:
    """Return a manifest as YAML."""
    if not value or not isinstance(value, dict | list):
        return f"{json.dumps(value, ensure_ascii=False)}\n"
    lines = []
    for key, each in value.items() if isinstance(value, dict) else ((None, each) for each in value):
        beginning = "- " if key is None else f"{key if re.fullmatch(PLAIN, key) else json.dumps(key)}:"
        text = yaml_of(each, indent + 2)
        if key is not None:
            text = f"\n{text}" if isinstance(each, dict | list) and each else f" {text}"
        lines.append(" " * indent + beginning + (text.lstrip(" ") if key is None else text))
    return "".join(lines)
