"""What Kubernetes is asked for, by the API's own schema; and what is said of Jobs and pods, by what the API says of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from jupyter_dtrain.cluster.hosts import kubernetes_job
from jupyter_dtrain.cluster.hosts.kubernetes_job import KubernetesJob
from jupyter_dtrain.cluster.hosts.kubernetes_launcher import KubernetesLauncher, manifests_of, yaml_of
from jupyter_dtrain.cluster_options import ClusterOptions, JobOptions
from jupyter_dtrain.errors import UsageError

HOSTS = Path(__file__).parents[1] / "hosts"
SCHEMA = json.loads((HOSTS / "kubernetes_1.29.json").read_text())
"""Of Jobs, Services and Secrets in Kubernetes 1.29, made of its OpenAPI: without texts, and no field is allowed that it does not name."""
KINDS = {"Job": "io.k8s.api.batch.v1.Job", "Service": "io.k8s.api.core.v1.Service", "Secret": "io.k8s.api.core.v1.Secret"}
FILE = """
metadata:
  namespace: team
spec:
  template:
    spec:
      nodeSelector: {pool: cpu}
      containers:
      - name: agent
        image: registry/me/train:1
        volumeMounts: [{name: home, mountPath: /home/me}]
      volumes:
      - name: home
        persistentVolumeClaim: {claimName: home}
"""


def with_stand_in(monkeypatch, folder):
    """Let `kubectl` be the stand-in of the hosts' tests."""
    command = folder / "kubectl"
    command.write_text(f'#!/bin/sh\nSTAND_IN=/nowhere STAND_IN_NODES= exec {sys.executable} {HOSTS}/stand_in_kubectl.py "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture(params=["stand-in", "real"])
def options(request, monkeypatch, tmp_path):
    """Options with a file, which is merged without a cluster: by the real `kubectl` too, where there is one."""
    if request.param == "stand-in":
        with_stand_in(monkeypatch, tmp_path)
    elif shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl")
    (tmp_path / "pod.yaml").write_text(FILE)
    job = JobOptions(nodes=2, mem="8G", time="1:00:00", gpus=1, config=str(tmp_path / "pod.yaml"))
    return ClusterOptions(launcher="kubernetes", num_engines=8, remote_python="/opt/python", job=job)


def assert_valid(manifest):
    schema = {"$ref": f"#/$defs/{KINDS[manifest['kind']]}", **SCHEMA}
    jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(manifest)


def test_the_manifests_are_what_the_api_takes_and_say_what_was_asked_for(options):
    secret, service, job = manifests_of(options, "secret-text", "jupyter-dtrain-1a2b")
    for manifest in (secret, service, job):
        assert_valid(manifest)
        assert manifest["metadata"] == {
            "name": "jupyter-dtrain-1a2b",
            "namespace": "team",
            "labels": {"jupyter-dtrain/job": "jupyter-dtrain-1a2b"},
        }
    assert "secret-text" not in str(job)
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimitPerIndex"]) == (2, 2, 0)
    pod = job["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    assert agent["image"] == "registry/me/train:1"
    assert agent["command"][::3] == ["/opt/python", "$(JOB_COMPLETION_INDEX)"]
    assert agent["resources"]["limits"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert {mount["mountPath"] for mount in agent["volumeMounts"]} == {"/dev/shm", "/home/me"}
    assert {volume["name"] for volume in pod["volumes"]} == {"shared-memory", "home"}
    assert pod["activeDeadlineSeconds"] == 3600
    assert (pod["subdomain"], pod["nodeSelector"]) == (service["metadata"]["name"], {"pool": "cpu"})


def test_a_field_that_the_api_does_not_know_is_found(options):
    *_, job = manifests_of(options, "secret-text", "jupyter-dtrain-1a2b")
    job["spec"]["backoffLimitPerIndices"] = 0
    with pytest.raises(jsonschema.ValidationError, match="backoffLimitPerIndices"):
        assert_valid(job)


def test_what_is_shown_is_what_is_created(options):
    shown = KubernetesLauncher().script(options)
    assert list(yaml.safe_load_all(shown)) == manifests_of(options, "…", "jupyter-dtrain-…")


@pytest.mark.parametrize("value", [{"a": []}, {"a": {}}, {"yes": "no", "a: b": "- #", "n": [1, None, [True, {"x": ["y"]}]]}, [[{"a": 1}]]])
def test_any_manifest_is_the_same_as_yaml(value):
    assert yaml.safe_load(yaml_of(value)) == value


def test_the_image_is_that_of_the_notebooks_own_pod(monkeypatch):
    containers = [{"name": "proxy", "image": "proxy:1"}, {"name": "notebook", "image": "lab:7"}]
    metadata = {"annotations": {"kubectl.kubernetes.io/default-container": "notebook"}}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOSTNAME", "jupyter-me")
    asked = []

    def ask(command, _given=""):
        asked.append(command)
        return json.dumps({"metadata": metadata, "spec": {"containers": containers}})

    monkeypatch.setattr(type(kubernetes_job.KUBERNETES), "ask", staticmethod(ask))
    *_, job = manifests_of(ClusterOptions(launcher="kubernetes"), "key", "jupyter-dtrain-1a2b")
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "lab:7"
    assert asked[0][2:5] == ["get", "pod", "jupyter-me"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({}, "give the image of the engines"),
        ({"partition": "main"}, "--partition: Kubernetes has none"),
        ({"config": "/nowhere.yaml"}, "--launcher-config /nowhere.yaml: there is no such file"),
    ],
)
def test_what_cannot_be_asked_for_is_said_before_anything_runs(job, said, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match=re.escape(said)):
        KubernetesLauncher().script(ClusterOptions(launcher="kubernetes", job=JobOptions(**job)))


JOB = {"kind": "Job", "spec": {}, "status": {}}
FORGOTTEN = {"message": "exceeded quota: team"}


def pod(index=0, *, deleted=False, **status):
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    metadata = {"name": f"dtrain-{index}-x7", "annotations": annotations} | ({"deletionTimestamp": "now"} if deleted else {})
    return {"kind": "Pod", "metadata": metadata, "status": status}


def container(**state):
    return [{"state": state}]


RUNNING = {"containerStatuses": container(running={})}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
OOM = container(terminated={"reason": "OOMKilled", "exitCode": 137})
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "Job has failed indexes"}]}
STATES = {
    "forgotten": ([], "over", "", "was deleted"),
    "quota": ([JOB], "waits", "exceeded quota: team", ""),
    "queue": ([JOB | {"spec": {"suspend": True}}], "waits", "suspended, such as by a queue: it starts when the queue resumes it", ""),
    "creating": ([JOB, pod(containerStatuses=container(waiting={"reason": "ContainerCreating"}))], "waits", "ContainerCreating", ""),
    "one of two": ([JOB, pod(**RUNNING), pod(1)], "waits", "", ""),
    "running": ([JOB, pod(**RUNNING), pod(1, **RUNNING)], "runs", "", ""),
    "out of time": ([JOB, pod(reason="DeadlineExceeded")], "over", "", "is out of time: its limit was 2:00:00 (`--time`)"),
    "out of memory": ([JOB, pod(containerStatuses=OOM)], "over", "", "has exceeded its memory limit: request more with `--mem`"),
    "preempted": ([JOB, pod(conditions=[PREEMPTED])], "over", "", "was preempted by a pod of higher priority"),
    "failed": ([JOB | {"status": FAILED}], "over", "", "has ended (Job has failed indexes)"),
    "admission": ([JOB, pod(phase="Failed", reason="UnexpectedAdmissionError")], "over", "", "has ended (UnexpectedAdmissionError)"),
    "pod deleted": ([JOB, pod(deleted=True, **RUNNING)], "over", "", "was deleted"),
}


def job_of(items, monkeypatch):
    """Return a Job of which the API says that."""
    job = object.__new__(KubernetesJob)
    job.number, job._limit, job._num_pods, job._where = "dtrain", "2:00:00", 2, []
    told = lambda command, _given="": json.dumps({"items": [FORGOTTEN] if "events" in command else items})  # noqa: E731
    monkeypatch.setattr(type(kubernetes_job.KUBERNETES), "ask", staticmethod(told))
    return job


@pytest.mark.parametrize("case", STATES)
def test_how_a_job_stands_is_read_from_what_the_api_says(case, monkeypatch):
    items, phase, reason, end = STATES[case]
    state = job_of(items, monkeypatch).state()
    assert (state.phase, state.reason, state.end) == (phase, reason, end)


def test_an_end_is_that_of_the_pod_it_is_asked_of(monkeypatch):
    job = job_of([JOB, pod(0, **RUNNING), pod(1, conditions=[PREEMPTED])], monkeypatch)
    assert job.why_ended("dtrain-1") == "its pod dtrain-1-x7 was preempted by a pod of higher priority"
    assert job.why_ended("dtrain-0") == ""
    assert job.why_ended("") == "its pod dtrain-1-x7 was preempted by a pod of higher priority"
