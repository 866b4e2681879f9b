"""Real Grid Engine on hosts of the lab: its master beside the notebook, and an execution host on each of some others."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.hosts.virtual_hosts import VirtualHost, VirtualHosts

INSTALLED, SHARED = Path("/usr/lib/gridengine"), Path("/usr/share/gridengine")
LIMIT = 20.0  # seconds until all hosts report
_BOOTSTRAP = """
admin_user root
default_domain none
ignore_fqdn false
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{spool}/qmaster
binary_path /usr/sbin
qmaster_spool_dir {spool}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
_PE = """
pe_name           two
slots             99
user_lists        NONE
xuser_lists       NONE
start_proc_args   NONE
stop_proc_args    NONE
allocation_rule   1
control_slaves    TRUE
job_is_first_task FALSE
urgency_slots     min
accounting_summary TRUE
qsort_args        NONE
"""
_SETTINGS = {
    "execd_spool_dir": "{spool}/execd",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "mailer": "/bin/true",
    "administrator_mail": "none",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:00 accounting_flush_time=00:00:00 joblog=false",
}
_SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1", "schedd_job_info": "true"}
_SCHEDULER["queue_sort_method"] = "seqno"  # by load the busier host is the last one, and rank 0's is another each time


def why_no_sge() -> str:
    """Return why Grid Engine cannot run here; empty where it can."""
    missing = [tool for tool in ("sge_qmaster", "sge_execd", "qconf", "spoolinit") if not (INSTALLED / tool).exists()]
    return f"there is no {missing[0]} (Debian's gridengine-master, gridengine-exec, gridengine-client)" if missing else ""


class VirtualSge:
    """Grid Engine, with execution hosts `nodes`, each with two slots."""

    def __init__(self, lab: VirtualHosts, nodes: Sequence[VirtualHost]) -> None:
        self._lab, self._nodes = lab, nodes
        self.state = lab.folder / "sge"
        self._root, self._spool = self.state / "root", self.state / "spool"
        self._servers: list[subprocess.Popen[bytes]] = []
        for folder in (self._root / "default/common", self._spool / "qmaster/job_scripts", self._spool / "execd"):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self._root / name).symlink_to(f"/var/lib/gridengine/{name}")
        common = self._root / "default/common"
        (common / "bootstrap").write_text(_BOOTSTRAP.lstrip().format(root=self._root, spool=self._spool))
        (common / "act_qmaster").write_text("h0\n")

    @property
    def env(self) -> dict[str, str]:
        """What its commands need to find it."""
        return {
            "SGE_ROOT": str(self._root),
            "SGE_CELL": "default",
            "SGE_ARCH": "lx-amd64",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
            "SGE_ND": "1",
        }

    def __enter__(self) -> VirtualSge:
        try:
            self._spool_defaults()
            self._start(self._lab[0], "sge_qmaster")
            self._wait_for(lambda: self._try("qconf", "-sm") is not None)
            for node in self._nodes:
                self.run("qconf", "-ah", node.name)
            self.run("qconf", "-as", "h0")
            for node in self._nodes:
                self._start(node, "sge_execd")
            self._wait_for(lambda: (self._try("qconf", "-sel") or "").split() == [node.name for node in self._nodes])
            self._change("-ssconf", "-Msconf", _SCHEDULER)
            self.run("qconf", "-Ap", self._written("pe", _PE.lstrip()))
            queue = {"qname": "all.q", "hostlist": "h1 h2", "slots": "2", "pe_list": "two", "load_thresholds": "NONE"}
            self._change("-sq", "-Aq", queue | {"seq_no": "1,[h1=1],[h2=2]"})
            self._wait_for(lambda: self.run("qstat", "-f").count("lx-amd64") == len(self._nodes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _spool_defaults(self) -> None:
        """Write what the master begins with."""
        settings = dict(line.split(None, 1) for line in (SHARED / "default-configuration").read_text().splitlines() if line[:1].isalpha())
        settings |= {name: value.format(spool=self._spool) for name, value in _SETTINGS.items()}
        configuration = self._written("configuration", "".join(f"{name} {value}\n" for name, value in settings.items()))
        where = [str(self._root / "default/common"), str(self._spool / "qmaster")]
        self.run(INSTALLED / "spoolinit", "classic", "libspoolc", ";".join(where), "init")
        for what, given in (
            ("configuration", configuration),
            ("complexes", SHARED / "util/resources/centry"),
            ("usersets", SHARED / "util/resources/usersets"),
            ("managers", "root"),
        ):
            self.run(INSTALLED / "spooldefaults", what, given)

    def _change(self, show: str, modify: str, changes: dict[str, str]) -> None:
        """Change lines of what `show` shows, and let it be that."""
        lines = (line.split(None, 1) for line in self.run("qconf", show).replace("\\\n", "").splitlines() if line.strip())
        told = {line[0]: line[1] for line in lines if len(line) == 2} | changes
        self.run("qconf", modify, self._written(modify.strip("-"), "".join(f"{name} {value}\n" for name, value in told.items())))

    def _written(self, name: str, text: str) -> Path:
        (self.state / name).write_text(text)
        return self.state / name

    def __exit__(self, *_: object) -> None:
        for host in (self._lab[0], *self._nodes):  # what `nsenter` has started gets no signal with it
            host.run(["sh", "-c", "pkill -9 -x 'sge_qmaster|sge_execd|sge_shepherd' || true"])
        for server in self._servers:
            with suppress(ProcessLookupError):
                server.terminate()
            server.wait()
        shutil.rmtree(self.state, ignore_errors=True)

    def run(self, *argv: object) -> str:
        """Return what a command says on the notebook's host."""
        done = self._done(argv)
        assert not done.returncode, (argv, done.stdout, done.stderr)
        return str(done.stdout)

    def jobs(self) -> list[str]:
        """Return the numbers and states of jobs that wait or run."""
        rows = [line.split() for line in self.run("qstat", "-u", "*").splitlines()[2:]]
        return [f"{row[0]} {row[4]}" for row in rows]

    def _start(self, host: VirtualHost, name: str) -> None:
        with (host.state / f"{name}.out").open("wb") as log:
            command = host.argv([INSTALLED / name], env=self.env)
            self._servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    def _done(self, argv: Sequence[object]) -> Any:
        return subprocess.run(self._lab[0].argv(argv, env=self.env), capture_output=True, text=True, check=False, timeout=30)

    def _try(self, *argv: object) -> str | None:
        done = self._done(argv)
        return None if done.returncode else str(done.stdout)

    def _wait_for(self, condition: Any) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                logs = [*self._spool.rglob("messages"), *self._lab.folder.glob("h*/*.out"), *Path("/tmp").glob("execd_messages*")]
                raise TimeoutError("\n".join(f"{log}: {log.read_text(errors='replace')[-800:]}" for log in logs))
            time.sleep(0.05)
