"""Launcher for Kubernetes: an Indexed Job whose pods are hosts with agents, managed through ``kubectl``."""

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
"""Name of the agent's container, which a user's file can extend."""
GRACE = 10
"""Seconds for a deleted pod to end by itself."""
PLAIN = r"(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w./-]*"
"""Keys that need no quotes in YAML."""
KEPT = 600
"""Seconds after which Kubernetes removes an ended Job, if the notebook's process has not."""


class KubernetesLauncher(BatchLauncher):
    """Start an agent in each pod of a Job."""

    name, picks_nodes = KUBERNETES.launcher, KUBERNETES.title

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options that Kubernetes does not have."""
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
    """Return a Secret with the agents' key, a Service by which pods resolve each other's names, and the Job, all called `name`."""
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
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # a container's own /dev/shm has 64 MiB
    }
    if given:
        agent["resources"] = {"requests": given, "limits": given}
    pod: Manifest = {
        "subdomain": name,  # with the Service this gives each pod a resolvable name
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        "automountServiceAccountToken": False,  # cells need no access to Kubernetes
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
            "backoffLimitPerIndex": 0,  # an ended pod ends no other, and is not replaced: a new one would find nobody
            "ttlSecondsAfterFinished": KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _with_file(job: Manifest, path: str | None) -> Manifest:
    """Return the Job merged with a user's file; ``kubectl`` merges them locally."""
    if path is None:
        return job
    if not Path(path).expanduser().is_file():
        raise UsageError(f"--launcher-config {path}: there is no such file.")
    try:
        told = kubectl("patch", "--local", "--type=strategic", f"--patch-file={Path(path).expanduser()}", "-f-", "-ojson", given=job)
    except ClusterError as error:
        raise UsageError(f"--launcher-config {path} must be part of a Job, in YAML. {error}") from None
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
