"""What schedulers are asked with, for the options of a job: the whole script of each, as ``--show-script`` shows it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from jupyter_dtrain.cluster.hosts.batch_job import ENDED, Scheduler
from jupyter_dtrain.cluster.hosts.htcondor_launcher import CondorJob
from jupyter_dtrain.cluster.hosts.job_requests import hours_of, seconds_of
from jupyter_dtrain.cluster.hosts.lsf_launcher import LsfJob
from jupyter_dtrain.cluster.hosts.pbs_launcher import PbsJob, _facts
from jupyter_dtrain.cluster.hosts.sge_launcher import SgeJob
from jupyter_dtrain.cluster.hosts.slurm_launcher import AllocatedStep, SlurmJob
from jupyter_dtrain.cluster.launchers import find_launcher
from jupyter_dtrain.cluster_options import ClusterOptions, HostSpec, JobOptions
from jupyter_dtrain.errors import ClusterError, UsageError
from jupyter_dtrain.notebook.control_line import parse_line
from tests.unit.test_kubernetes import with_stand_in

ASKED = {
    "slurm": [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--gpus-per-node=1",
        "--mem=64G",
        "--time=1:30:00",
        "--partition=main",
    ],
    "pbs": [
        "-S /bin/bash",
        "-l select=2:ncpus=4:ngpus=1:mem=64gb",
        "-l place=scatter",
        "-l walltime=1:30:00",
        "-q main",
        "-A mine",
        "-r n",
    ],
    "lsf": ["-n 8", '-R "span[ptile=4]"', '-R "rusage[mem=64GB/host]"', '-gpu "num=1/host"', "-W 1:30", "-q main", "-P mine", "-rn"],
}
DIRECTIVES = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB", "sge": "#$", "htcondor": "#CONDOR"}


def script_of(launcher, **job):
    options = ClusterOptions(launcher=launcher, num_engines=8, remote_python="/opt/python", job=JobOptions(nodes=2, **job))
    return find_launcher(launcher).script(options)


def commands_of(script):
    return [line for line in script.splitlines() if not line.startswith("#")]


@pytest.fixture
def config(tmp_path):
    """Return a function that writes a user's file."""

    def write(*lines):
        (tmp_path / "job.sh").write_text("\n".join(["#!/bin/bash", *lines, "module load python"]))
        return str(tmp_path / "job.sh")

    return write


@pytest.mark.parametrize("launcher", ASKED)
def test_a_script_asks_for_each_node_alike(launcher):
    script = script_of(launcher, gpus=1, mem="64G", time="1:30:00", partition="main", account="mine")
    asked = [line.removeprefix(DIRECTIVES[launcher]).strip() for line in script.splitlines() if line.startswith(DIRECTIVES[launcher])]
    assert script.startswith("#!/bin/bash\n")
    for line in ASKED[launcher]:
        assert line in asked


@pytest.mark.parametrize("launcher", DIRECTIVES)
def test_a_users_lines_come_behind_ours_and_the_commands_before_the_agents(launcher, config):
    own = f"{DIRECTIVES[launcher]} -pe mpi 8"
    script = script_of(launcher, config=config(own))
    assert "module load python" in commands_of(script)
    assert script.index("module load python") < script.index("JUPYTER_DTRAIN_AGENT") < script.index("/opt/python -m")
    if launcher == "htcondor":
        assert "\n-pe mpi 8\nqueue 2\n" in script
    else:
        lines = script.splitlines()
        assert lines.index(own) > max(at for at, line in enumerate(lines) if line.startswith(DIRECTIVES[launcher]) and line != own)


@pytest.mark.parametrize("launcher", DIRECTIVES)
def test_a_script_is_one_that_a_shell_can_read(launcher, config):
    script = script_of(launcher, config=config("#$ -pe mpi 8"))
    subprocess.run(["bash", "-n"], input=script[script.index("#!/bin/bash") :], text=True, check=True)


def test_other_nodes_of_pbs_have_the_commands_and_the_key_from_a_file_of_the_user_alone(config):
    commands = commands_of(script_of("pbs", config=config()))
    assert commands.index("umask 077") < commands.index("cat > \"$own\" <<'END_OF_NODE'")
    assert commands.count("module load python") == 2
    assert 'for at in 0 1; do pbsdsh -n $at -- /bin/bash -l "$own" $at & done' in commands


def test_htcondor_shows_a_description_without_the_key():
    description, _, program = script_of("htcondor", time="90", mem="8G").partition("#!/bin/bash")
    assert "JUPYTER" not in description
    assert "request_memory = 8GB\n" in description
    assert "allowed_job_duration = 5400\n" in description
    assert description.rstrip().endswith("queue 2")
    assert "host_agent $1" in program


@pytest.mark.parametrize(
    ("launcher", "job", "said"),
    [
        ("sge", {}, "write `#$ -pe NAME 8` into the file of --launcher-config"),
        ("sge", {"mem": "8G"}, "write `#$ -l NAME=…`"),
        ("htcondor", {"partition": "main"}, "HTCondor has none"),
        ("pbs", {"time": "1:30"}, "--time 1:30: give minutes, or hours as in 2:00:00"),
        ("mpi", {"time": "90"}, "submits no job"),
        ("pbs", {"config": "/nowhere/job.sh"}, "--launcher-config /nowhere/job.sh: No such file"),
    ],
)
def test_what_cannot_be_asked_for_is_said_before_anything_runs(launcher, job, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        script_of(launcher, **job)


@pytest.mark.parametrize(
    "options", [{"time": "1\n#SBATCH -w x"}, {"account": "a b"}, {"nodes": 0}, {"cpus": 0}, {"gpus": 0}, {"mem": "64"}, {"mem": "8G x"}]
)
def test_what_would_write_into_the_script_is_refused(options):
    with pytest.raises(UsageError):
        JobOptions(**options)


@pytest.mark.parametrize("launcher", ["slurm", "pbs"])
def test_gpus_that_no_engine_would_use_are_shown_and_not_asked_for(launcher):
    options = ClusterOptions(launcher=launcher, job=JobOptions(gpus=1))
    assert "gpu" in find_launcher(launcher).script(options)
    for act in (find_launcher(launcher).plan, find_launcher(launcher).start):
        with pytest.raises(UsageError, match="--gpus-per-node: engines on other hosts compute on CPUs"):
            act(options)


@pytest.mark.parametrize(
    ("launcher", "command"),
    [("pbs", "qsub"), ("lsf", "bsub"), ("htcondor", "condor_submit"), ("kubernetes", "kubectl"), ("mpi", "mpiexec")],
)
def test_a_host_without_the_schedulers_commands_says_which(launcher, command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # as in a pod, whose image is looked up
    with pytest.raises(ClusterError, match=rf"There is no {command} here"):
        find_launcher(launcher).start(ClusterOptions(launcher=launcher))


MPIS = {"mpiexec (OpenRTE) 4.1.4": "--host a,b --map-by ppr:1:node", "HYDRA build details:": "-hosts a,b -ppn 1 -disable-auto-cleanup"}


@pytest.mark.parametrize("version", MPIS)
def test_mpiexec_is_asked_in_the_words_of_its_own_mpi(version, monkeypatch, tmp_path):
    mpiexec = Path(tmp_path) / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpiexec.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hosts = (HostSpec(name="a", num_engines=2), HostSpec(name="b", num_engines=1))
    shown = find_launcher("mpi").script(ClusterOptions(launcher="mpi", hosts=hosts))
    assert shown.splitlines()[-1].startswith(f"mpiexec -n 2 {MPIS[version]}")


@pytest.mark.parametrize(
    ("text", "seconds", "hours"), [("90", 5400, "1:30:00"), ("0:00:05", 5, "0:00:05"), ("1-02:00:00", 93600, "26:00:00")]
)
def test_a_limit_of_time_in_the_words_of_each(text, seconds, hours):
    assert (seconds_of(text), hours_of(text)) == (seconds, hours)


def test_what_pbs_says_of_a_job_goes_on_in_the_next_line():
    told = _facts("Job Id: 17.server\n    job_state = Q\n    comment = Not Running: Insufficient amount of res\n\tource: ncpus\n")
    assert told == {"job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ncpus"}


class Told:
    """What a scheduler's commands say, in the place of running them; a command that is not there fails as its own do."""

    def __init__(self, **commands):
        self.commands = commands

    def __call__(self, command, given=""):
        said = self.commands.get(command[0])
        if said is None:
            raise ClusterError("It says: Unknown Job Id 17.")
        return said


def state_of(kind, monkeypatch, **commands):
    """Return the state of a job of `kind` of whom its scheduler says that."""
    job = object.__new__(kind)
    job.number, job._limit = "17", "2:00:00"
    monkeypatch.setattr(Scheduler, "ask", staticmethod(Told(**commands)))
    return job.state()


PBS_OVER = "    job_state = F\n    substate = {}\n    Exit_status = {}\n    Resource_List.walltime = 02:00:00\n"
CONDOR = '[{{"ProcId": 0, {}}}]'
STATES = {
    "pbs out of time": (PbsJob, {"qstat": PBS_OVER.format(92, -29)}, "over", "is out of time: its limit was 02:00:00 (`--time`)"),
    "pbs deleted": (PbsJob, {"qstat": PBS_OVER.format(91, 1)}, "over", "was cancelled"),
    "pbs ended": (PbsJob, {"qstat": PBS_OVER.format(92, 127)}, "over", "has ended (exit status 127)"),
    "pbs forgotten": (PbsJob, {}, "over", ENDED),
    "lsf runs": (LsfJob, {"bjobs": "RUN|-|-|-|-\n"}, "runs", ""),
    "lsf out of time": (
        LsfJob,
        {"bjobs": "EXIT|-|-|TERM_RUNLIMIT: job killed|140\n"},
        "over",
        "is out of time: its limit was 2:00:00 (`--time`)",
    ),
    "lsf forgotten": (LsfJob, {"bjobs": ""}, "over", ENDED),
    "sge out of time": (
        SgeJob,
        {"qstat": "", "qacct": "failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n"},
        "over",
        "is out of time: its limit was 2:00:00 (`--time`)",
    ),
    "sge runs": (SgeJob, {"qstat": "job-ID\n---\n  17 0.5 jupyter-dt root r 11/27/2026 10:00:00 all.q@h1 2\n"}, "runs", ""),
    "sge forgotten": (SgeJob, {"qstat": ""}, "over", ENDED),
    "condor removed": (
        CondorJob,
        {"condor_q": "", "condor_history": CONDOR.format('"JobStatus": 3, "RemoveReason": "via condor_rm"')},
        "over",
        "was cancelled (via condor_rm)",
    ),
    "condor evicted": (
        CondorJob,
        {"condor_q": "[]", "condor_history": CONDOR.format('"JobStatus": 3, "RemoveReason": "PeriodicRemove was TRUE"')},
        "over",
        "was evicted from its machine",
    ),
    "condor held": (CondorJob, {"condor_q": CONDOR.format('"JobStatus": 5, "HoldReason": "no disk"')}, "waits", "is held: no disk"),
}


@pytest.mark.parametrize("case", STATES)
def test_how_a_job_stands_is_read_from_what_its_scheduler_says(case, monkeypatch):
    kind, commands, phase, end = STATES[case]
    found = state_of(kind, monkeypatch, **commands)
    assert (found.phase, found.end) == (phase, end)


SLURM_TOLD = (
    "JobId=17 JobName=dtrain JobState={} Requeue=1 Restarts={} BatchFlag=1 ExitCode={} BatchHost=h1 StdOut=/home/me/x/dtrain-17.log\n"
)


@pytest.mark.parametrize(
    ("kind", "told", "end"),
    [
        (SlurmJob, ("PENDING", 1, "0:0"), "its job 17 was requeued"),
        (AllocatedStep, ("RUNNING", 1, "0:0"), ""),  # the notebook's own job, before the notebook was there
        (SlurmJob, ("FAILED", 0, "0:53"), "its job 17 cannot write its output into /home/me/x on h1"),
        (SlurmJob, ("FAILED", 0, "1:0"), "its job 17 has ended (FAILED, exit code 1:0)"),
        (SlurmJob, ("RUNNING", 0, "0:0"), ""),
    ],
)
def test_why_an_agent_has_ended_is_read_from_what_slurm_says_of_its_job(kind, told, end, monkeypatch):
    job = object.__new__(kind)
    job.number = "17"
    monkeypatch.setattr(Scheduler, "ask", staticmethod(Told(scontrol=SLURM_TOLD.format(*told))))
    found = job.why_ended("")
    assert found.startswith(end) if end else found == ""


def test_a_job_of_grid_engine_in_error_says_why(monkeypatch):
    queue = "job-ID\n---\n  17 0.5 jupyter-dt root Eqw 11/27/2026 10:00:00 2\n"
    told = {"qstat": queue + "error reason          1:      11/27/2026 [0:1]: error: can't chdir\n"}
    assert "can't chdir; `qmod -cj 17` lets it try again" in state_of(SgeJob, monkeypatch, **told).reason


def lines_of_the_page():
    """Return the lines of docs/hosts.md that start engines in a job or by MPI."""
    page = (Path(__file__).parents[2] / "docs/hosts.md").read_text(encoding="utf-8")
    return re.findall(r"^%distribute (start --launcher .*)$", page, re.MULTILINE)


def yaml_block_of_the_page():
    return (Path(__file__).parents[2] / "docs/hosts.md").read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]


def test_every_launcher_of_a_job_has_a_line_in_the_page():
    assert {line.split()[2] for line in lines_of_the_page()} == {*DIRECTIVES, "kubernetes", "mpi"}


@pytest.mark.parametrize("line", lines_of_the_page())
def test_a_line_of_the_page_shows_its_script(line, monkeypatch, tmp_path):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    mpiexec.chmod(0o755)
    with_stand_in(monkeypatch, tmp_path)

    (tmp_path / "pod.yaml").write_text(yaml_block_of_the_page())
    (tmp_path / "job.sh").write_text("#$ -pe mpi 8\nmodule load python/3.11\n")
    monkeypatch.chdir(tmp_path)
    options = parse_line(line.removesuffix("--show-script")).cluster
    script = find_launcher(options.launcher).script(options)
    assert "host_agent" in script
    assert "JUPYTER_DTRAIN_AGENT=…" in script or options.launcher in ("kubernetes", "sge")
