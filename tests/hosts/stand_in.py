"""Stands in for PBS, LSF and HTCondor, of which there are no daemons here: their commands, with their words, states and exit statuses.

Called with the names of these commands (`StandIns` makes them). A job waits while there is a file `drained` with a reason, or it is held.
It then runs on the nodes, by ssh, below a process that is its mother: that ends it when it is deleted or out of time, and notes how.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

NAME, *ARGUMENTS = sys.argv[1:]
STATE = Path(os.environ["STAND_IN"])
NODES = os.environ["STAND_IN_NODES"].split()
TICK = 0.1
KILL = "grep -lz '^STAND_IN_JOB={}$' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | xargs -r kill -{}"


def path_of(number):
    return STATE / f"{number}.json"


def load(number):
    try:
        return json.loads(path_of(number).read_text())
    except OSError:
        return None


def save(number, **changed):
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = {**(load(number) or {}), **changed}
        aside = path_of(number).with_suffix(".new")
        aside.write_text(json.dumps(told))
        aside.rename(path_of(number))


def drained():
    try:
        return (STATE / "drained").read_text()
    except OSError:
        return ""


def in_seconds(text):
    parts = [int(part) for part in text.split(":")]
    return parts[0] * 3600 + parts[1] * 60 + (parts[2] if len(parts) > 2 else 0)


def found(pattern, text, default=""):
    match = re.search(pattern, text)
    return match[1] if match else default


def submit(kind, script, *, nodes, limit=0, arguments="", output=""):
    number = str(17 + len(list(STATE.glob("*.json"))))
    save(number, kind=kind, script=script, nodes=nodes, limit=limit, arguments=arguments, output=output, phase="waits", end="")
    nothing = subprocess.DEVNULL
    subprocess.Popen([sys.executable, __file__, "mother", number], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    return number


def ssh(node, script, variables, *arguments):
    given = [f"{name}={value}" for name, value in variables.items()]
    command = ["ssh", "-o", "BatchMode=yes", node, shlex.join(["env", *given, "bash", "-s", "--", *arguments])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), script


def mother(number):
    """Let a job wait, run and end."""
    job = load(number)
    while drained() or job.get("held"):
        time.sleep(TICK)
        if (job := load(number)).get("delete"):
            save(number, phase="over", end="deleted")
            return
    variables = {name: os.environ[name] for name in ("STAND_IN", "STAND_IN_NODES")}
    variables |= {"STAND_IN_JOB": number, "PATH": f"{STATE}/bin:/usr/bin:/bin", "HOME": str(STATE / "home")}
    nodes = NODES[: job["nodes"]]
    if job["kind"] == "lsf":
        (STATE / f"{number}.hosts").write_text("".join(f"{node}\n" * 2 for node in nodes))
        variables |= {"LSB_JOBID": number, "LSB_DJOB_HOSTFILE": str(STATE / f"{number}.hosts")}
    if job["kind"] == "pbs":
        variables |= {"PBS_JOBID": f"{number}.server"}
    each = range(len(nodes)) if job["kind"] == "htcondor" else range(1)
    steps = [ssh(nodes[at], job["script"], variables, *job["arguments"].replace("$(Process)", str(at)).split()) for at in each]
    for step, script in steps:
        step.stdin.write(script.encode())
        step.stdin.close()
        step.stdin = None
    save(number, phase="runs")
    began, end = time.monotonic(), ""
    while any(step.poll() is None for step, _ in steps) and not end:
        time.sleep(TICK)
        job = load(number)
        end = "deleted" if job.get("delete") else job.get("kill", "")
        if job["limit"] and time.monotonic() - began > job["limit"]:
            end = "out of time"
    if end:
        save(number, end=end)
        for signal in ("TERM", "KILL"):
            kills = [subprocess.Popen(["ssh", "-o", "BatchMode=yes", node, KILL.format(number, signal)]) for node in nodes]
            for kill in kills:
                kill.wait()
    for at, (step, _) in enumerate(steps):
        told = step.communicate()[0]
        if job["output"]:
            Path(job["output"].replace("$(Cluster)", number).replace("$(Process)", str(at)).replace("%J", number)).write_bytes(told)
    save(number, phase="held" if end == "out of time" and job["kind"] == "htcondor" else "over", end=end, status=steps[0][0].returncode)


def fail(said):
    sys.exit(f"{NAME}: {said}" if said else 1)


def qsub():
    script = sys.stdin.read()
    limit = found(r"#PBS -l walltime=(\S+)", script)
    if re.search("#PBS -q nowhere", script):
        fail("Unknown queue")
    number = submit("pbs", script, nodes=int(found(r"#PBS -l select=(\d+)", script)), limit=in_seconds(limit) if limit else 0)
    save(number, output=f"{found(r'#PBS -o (.+)', script)}jupyter-dtrain.o{number}", walltime=limit)
    print(f"{number}.server")


def qstat():
    number = ARGUMENTS[-1].partition(".")[0]
    job = load(number)
    if job is None:
        fail(f"Unknown Job Id {number}.server")
    letter = {"waits": "H" if job.get("held") else "Q", "runs": "R", "over": "F"}[job["phase"]]
    print(f"Job Id: {number}.server\n    Job_Name = jupyter-dtrain\n    job_state = {letter}")
    print(f"    Hold_Types = {'u' if job.get('held') else 'n'}\n    Resource_List.walltime = {job['walltime']}")
    if letter == "Q":
        half = len(drained()) // 2  # a long line goes on behind a tab
        print(f"    comment = Not Running: {drained()[:half]}\n\t{drained()[half:]}")
    if letter == "F":
        status = {"deleted": 271, "out of time": -29}.get(job["end"], job["status"])
        print(f"    substate = {91 if job['end'] == 'deleted' else 92}\n    Exit_status = {status}")


def delete():
    number = ARGUMENTS[-1].partition(".")[0]
    job = load(number)
    if job is None or job["phase"] == "over":
        fail("Job has finished")
    save(number, delete=True, **({"phase": "over", "end": "deleted"} if job["phase"] == "held" else {}))


def hold():
    save(ARGUMENTS[-1].partition(".")[0], held=NAME in ("qhold", "bstop", "condor_hold"))


def pbsdsh():
    """Give the task none of its own variables, as the real one does."""
    assert ARGUMENTS[0] == "-n", ARGUMENTS
    names = ("STAND_IN", "STAND_IN_NODES", "STAND_IN_JOB", "PBS_JOBID", "HOME")
    given = [f"{name}={os.environ[name]}" for name in names]
    os.execvp("ssh", ["ssh", "-o", "BatchMode=yes", NODES[int(ARGUMENTS[1])], shlex.join(["env", *given, *ARGUMENTS[3:]])])


def bsub():
    script = sys.stdin.read()
    nodes = int(found(r"#BSUB -n (\d+)", script)) // int(found(r"ptile=(\d+)", script))
    limit = found(r"#BSUB -W (\S+)", script, "0:00")
    number = submit("lsf", script, nodes=nodes, limit=in_seconds(limit), output=found("#BSUB -o (.+)", script))
    print(f"Job <{number}> is submitted to default queue <normal>.")


def bjobs():
    job = load(ARGUMENTS[-1])
    if job is None:
        print(f"Job <{ARGUMENTS[-1]}> is not found", file=sys.stderr)
        return
    state = {"waits": "PSUSP" if job.get("held") else "PEND", "runs": "RUN"}.get(job["phase"]) or ("EXIT" if job["end"] else "DONE")
    why = {"deleted": "TERM_OWNER: job killed by owner", "preempted": "TERM_PREEMPT: job killed after preemption"}
    print(state, drained() if state == "PEND" else "-", "-", why.get(job["end"], "-"), 143 if job["end"] else "-", sep="|")


def blaunch():
    """Give the task all variables."""
    given = [f"{name}={value}" for name, value in os.environ.items() if re.match("STAND_IN|LSB_|JUPYTER|PATH|HOME", name)]
    os.execvp("ssh", ["ssh", "-o", "BatchMode=yes", ARGUMENTS[0], shlex.join(["env", *given, *ARGUMENTS[1:]])])


def condor_submit():
    text = sys.stdin.read()
    given = dict(re.findall(r"^(\w+) = (.*)$", text, re.MULTILINE))
    assert "JUPYTER" not in str(given)  # what everybody may see has no key
    nodes, limit = int(found(r"(?m)^queue (\d+)", text)), int(given.get("allowed_job_duration", 0))
    program = Path(given["executable"]).read_text()
    number = submit("htcondor", program, nodes=nodes, limit=limit, arguments=given["arguments"], output=given["output"])
    print(f"{number}.0 - {number}.{nodes - 1}")


def condor_q():
    job = load(ARGUMENTS[0]) or {"phase": "over"}
    state = 5 if job.get("held") or job["phase"] == "held" else {"waits": 1, "runs": 2}.get(job["phase"])
    told: dict[str, object] = {"JobStatus": state, "NumJobStarts": int(job["phase"] != "waits")}
    if state == 1:
        told["LastRejMatchReason"] = drained()
    if state == 5:
        out = job["phase"] == "held"
        told |= {"HoldReasonCode": 47 if out else 1, "HoldReason": "The job exceeded allowed job duration" if out else "via condor_hold"}
    print(json.dumps([{**told, "ProcId": at} for at in range(job["nodes"])]) if state else "")


def condor_history():
    job = load(ARGUMENTS[0])
    deleted = job["end"] == "deleted"
    how = {"JobStatus": 3, "RemoveReason": "via condor_rm (by user root)"} if deleted else {"JobStatus": 4, "ExitCode": job["status"]}
    print(json.dumps([how]))


if __name__ == "__main__":
    if NAME == "end":  # as the scheduler itself does: out of time, preempted
        save(ARGUMENTS[0].partition(".")[0], kill=" ".join(ARGUMENTS[1:]))
    elif NAME == "mother":
        mother(*ARGUMENTS)
    elif NAME in ("qdel", "bkill", "condor_rm"):
        delete()
    elif NAME in ("qhold", "qrls", "bstop", "bresume", "condor_hold", "condor_release"):
        hold()
    else:
        globals()[NAME]()
