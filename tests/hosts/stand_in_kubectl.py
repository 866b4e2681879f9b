"""Stands in for ``kubectl`` and a cluster of Kubernetes: objects are files, and pods run on hosts of the lab, by ssh.

Each pod has a numbering of processes and a host name of its own, so its agent is the first process there, as in a container. Pods wait
while there is a file `unschedulable` with a reason. What `kubectl` prints for them is what the API's reference says.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import yaml

STATE = Path(os.environ["STAND_IN"])
NODES = os.environ["STAND_IN_NODES"].split()
TICK = 0.1
NOTHING = subprocess.DEVNULL
POD = 'hostname "$0"; exec "$@"'
SSH = ("ssh", "-o", "BatchMode=yes")
MERGED_BY = {"volumeMounts": "mountPath"} | dict.fromkeys(("containers", "env", "volumes", "imagePullSecrets"), "name")


def path_of(kind, name):
    return STATE / f"{kind.lower()}.{name}.json"


def objects(*kinds):
    """Return what there is."""
    found = []
    for path in sorted(STATE.glob("*.*.json")):
        with contextlib.suppress(OSError):  # it has just been deleted
            found.append(json.loads(path.read_text()))
    return [each for each in found if not kinds or each["kind"].lower() in kinds]


@contextlib.contextmanager
def changing(kind, name):
    """Yield an object to change, ``None`` if it is not there."""
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = path_of(kind, name)
        found = json.loads(path.read_text()) if path.exists() else None
        yield found
        if found is not None:
            save(found)


def save(found):
    path = path_of(found["kind"], found["metadata"]["name"])
    path.with_suffix(".new").write_text(json.dumps(found))
    path.with_suffix(".new").rename(path)


def merged(given, patch):
    """Return a strategic merge, as far as it is needed: lists with names are merged by these."""
    result = dict(given)
    for key, value in patch.items():
        if isinstance(value, dict):
            result[key] = merged(result.get(key, {}), value)
        elif (by := MERGED_BY.get(key)) is not None:
            named = {each[by]: each for each in result.get(key, [])}
            for each in value:
                named[each[by]] = merged(named.get(each[by], {}), each)
            result[key] = list(named.values())
        else:
            result[key] = value
    return result


def refuse(said):
    sys.exit(f"Error from server {said}")


def create(_options):
    given = json.load(sys.stdin)["items"]
    for each in given:
        name = each["metadata"]["name"]
        if each["metadata"].get("namespace") == "forbidden":
            refuse('(Forbidden): error when creating "STDIN": jobs.batch is forbidden: User "me" cannot create resource "jobs"')
        each["metadata"]["uid"] = os.urandom(8).hex()
        save(each)
        if each["kind"] == "Job":
            subprocess.Popen(
                [sys.executable, __file__, "mother", name], start_new_session=True, stdin=NOTHING, stdout=NOTHING, stderr=NOTHING
            )
    print(json.dumps({"kind": "List", "items": given}))


def patch(options):
    if options.local:
        given, text = json.load(sys.stdin), Path(options.patch_file).read_text()
        print(json.dumps(merged(given, yaml.safe_load(text))))
        return
    for each in json.load(sys.stdin)["items"]:
        with changing(each["kind"], each["metadata"]["name"]) as found:
            found |= merged(found, json.loads(options.patch))


def get(options):
    if options.what == ["events"]:
        print(json.dumps({"items": []}))
        return
    kinds = options.what[0].split(",")
    name, _, value = options.selector.partition("=")
    found = [each for each in objects(*kinds) if each["metadata"]["labels"].get(name) == value]
    print(json.dumps({"kind": "List", "items": found}))


def delete(options):
    """Remove objects, and with a Job what belongs to it; its pods are ended first."""
    for what in options.what:
        kind, name = what.split("/")
        with contextlib.suppress(OSError):
            owner = json.loads(path_of(kind, name).read_text())["metadata"]["uid"]
            path_of(kind, name).unlink()
            for each in objects():
                if owner in [reference["uid"] for reference in each["metadata"].get("ownerReferences", [])]:
                    remove(each)


def remove(each):
    if each["kind"] != "Pod":
        path_of(each["kind"], each["metadata"]["name"]).unlink(missing_ok=True)
        return
    with changing("Pod", each["metadata"]["name"]) as pod:
        pod["metadata"]["deletionTimestamp"] = "now"
    if pod["status"]["phase"] in ("Failed", "Succeeded"):
        path_of("Pod", each["metadata"]["name"]).unlink()


def logs(options):
    name, _, value = options.selector.partition("=")
    for pod in objects("pod"):
        log = STATE / f"{pod['metadata']['name']}.log"
        if pod["metadata"]["labels"].get(name) == value and log.exists():
            print(log.read_text())


def mother(name):
    """Make the pods of a Job, and see to them until all have ended."""
    job = json.loads(path_of("Job", name).read_text())
    children = [
        subprocess.Popen([sys.executable, __file__, "kubelet", name, str(index)], start_new_session=True)
        for index in range(job["spec"]["completions"])
    ]
    for child in children:
        child.wait()


def kubelet(job_name, index):
    """Run one pod."""
    job = json.loads(path_of("Job", job_name).read_text())
    template, name = job["spec"]["template"], f"{job_name}-{index}-x7k2p"
    owner = {"kind": "Job", "name": job_name, "uid": job["metadata"]["uid"]}
    annotations = {"batch.kubernetes.io/job-completion-index": index}
    metadata = {"name": name, "labels": template["metadata"]["labels"], "annotations": annotations, "ownerReferences": [owner]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
    save(pod)
    while (STATE / "unschedulable").exists():
        message = (STATE / "unschedulable").read_text()
        if is_deleted(name, conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]):
            path_of("Pod", name).unlink(missing_ok=True)
            return
        time.sleep(TICK)
    (container,) = template["spec"]["containers"]
    pulled = container["image"].startswith("registry/")
    while not pulled:
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
        if is_deleted(name, conditions=[], containerStatuses=[{"state": {"waiting": waiting}}]):
            path_of("Pod", name).unlink(missing_ok=True)
            return
        time.sleep(TICK)
    run(name, template["spec"], container, host_name=f"{job_name}-{index}", index=index)


def is_deleted(name, **status):
    """Note how a pod is; return whether it is to end."""
    with changing("Pod", name) as pod:
        if pod is None:
            return True
        pod["status"] |= status
        return "deletionTimestamp" in pod["metadata"]


def run(name, spec, container, *, host_name, index):
    (variable,) = container["env"]
    reference = variable["valueFrom"]["secretKeyRef"]
    secret = json.loads(path_of("Secret", reference["name"]).read_text())["stringData"][reference["key"]]
    command = [word.replace("$(JOB_COMPLETION_INDEX)", index) for word in container["command"]]
    given = [f"{variable['name']}={secret}", f"JOB_COMPLETION_INDEX={index}", f"PYTHONPATH={os.environ['STAND_IN_PACKAGES']}"]
    env = ["env", "-i", "PATH=/usr/bin:/bin", "HOME=/root", *given]
    namespaces = ["unshare", "--uts", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    node = NODES[int(index)]
    there = shlex.join([*namespaces, *env, "sh", "-c", POD, host_name, *command])
    with (STATE / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*SSH, node, there], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    began, limit = time.monotonic(), spec.get("activeDeadlineSeconds")
    status = {"phase": "Running", "conditions": [], "containerStatuses": [{"state": {"running": {}}}]}
    while process.poll() is None:
        time.sleep(TICK)
        out_of_time = limit is not None and time.monotonic() - began > limit
        if (STATE / "evict").exists() and (STATE / "evict").read_text() == index:
            disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on memory"}
            end(node, host_name, status | {"phase": "Failed", "conditions": [disrupted]}, name)
        elif out_of_time:
            end(node, host_name, status | {"phase": "Failed", "reason": "DeadlineExceeded"}, name)
        elif is_deleted(name, **status):
            end(node, host_name, {}, name)
    failed = process.wait()
    message = (STATE / f"{name}.log").read_text() if failed == 127 else ""
    terminated = {"reason": "StartError" if failed == 127 else "Error" if failed else "Completed", "exitCode": failed, "message": message}
    phase = "Failed" if failed else "Succeeded"
    if is_deleted(name, phase=phase, containerStatuses=[{"state": {"terminated": terminated}}]):
        path_of("Pod", name).unlink(missing_ok=True)


def end(node, host_name, status, name):
    """End a pod, as `status` tells."""
    is_deleted(name, **status)
    for signal, seconds in (("TERM", 2), ("KILL", 0)):
        first = f"pgrep -f 'unshare .* {host_name} ' | head -1 | xargs -r pgrep -P | xargs -r kill -{signal}; sleep {seconds}"
        subprocess.run([*SSH, node, first], check=False)


def main():
    if sys.argv[1] in ("mother", "kubelet"):
        globals()[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("create", "patch", "get", "delete", "logs"))
    parser.add_argument("what", nargs="*")
    for option in ("request-timeout", "type", "patch", "patch-file", "selector", "field-selector", "namespace", "tail"):
        parser.add_argument(f"--{option}")
    for option in ("local", "ignore-not-found", "wait"):
        parser.add_argument(f"--{option}", nargs="?", const=True)
    parser.add_argument("-f")
    parser.add_argument("-o")
    options = parser.parse_args()
    globals()[options.verb](options)


if __name__ == "__main__":
    main()
