"""The options of a cluster, which both magics have."""

from __future__ import annotations

import argparse

from ..cluster_options import ClusterOptions, JobOptions
from ..errors import UsageError
from . import option_values


def add_cluster(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of a cluster to a parser; `names` are those of the number of engines."""
    add_engines(parser, *names)
    add_hosts(parser)


def add_engines(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add those that say how many engines there are and what they compute on."""
    group = parser.add_argument_group("engines")
    explained = "engines to use (default: one per GPU; on CPU one per two cores, at least 2)"
    group.add_argument(*names, dest="num_engines", type=option_values.whole_number, metavar="N", help=explained)
    group.add_argument("--force", action="store_true", help="start as many engines as --engines says, also more than the machine is for")
    group.add_argument("--device", default="auto", metavar="KIND", help="what the engines compute on: auto, cpu or cuda (default: auto)")
    group.add_argument(
        "--devices",
        default="exclusive",
        metavar="KIND",
        help="exclusive, a GPU for each engine, or shared, also several engines on one, to try a cell on more than there are GPUs "
        "(default: exclusive)",
    )


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add those that say where engines are and who starts them."""
    group = parser.add_argument_group("hosts and schedulers")
    group.add_argument(
        "--launcher",
        metavar="NAME",
        help="what starts the engines: local, ssh, mpi, slurm, pbs, lsf, sge, htcondor, kubernetes, connect, or one that an installed "
        "package brings (default: local, or ssh with --hosts, or connect with --connect)",
    )
    group.add_argument(
        "--hosts",
        type=option_values.hosts,
        default=(),
        metavar="A:N,B:N",
        help="hosts to start engines on, by their names for ssh, and how many on each, which may be left out (default: this host)",
    )
    group.add_argument("--remote-python", metavar="PATH", help="the Python to use on the hosts (default: the path of the notebook's)")
    group.add_argument(
        "--connect", metavar="FILE", help="the ipcontroller-client.json of a running ipyparallel cluster to put engines beside"
    )
    group.add_argument("--profile", metavar="NAME", help="the IPython profile of such a cluster")
    group.add_argument(
        "--nodes", type=option_values.whole_number, metavar="N", help="hosts of the scheduler's job (default: 1, or all of an allocation)"
    )
    group.add_argument(
        "--cpus-per-node",
        dest="cpus",
        type=option_values.whole_number,
        metavar="N",
        help="cores of each node (default: one for each engine)",
    )
    group.add_argument(
        "--gpus-per-node",
        dest="gpus",
        type=option_values.whole_number,
        metavar="N",
        help="GPUs of each node (default: what the scheduler gives)",
    )
    group.add_argument("--mem", metavar="SIZE", help="memory of each node, such as 64G (default: what the scheduler gives)")
    group.add_argument("--time", metavar="LIMIT", help="how long the job may run: minutes, or hours as in 2:00:00")
    group.add_argument("--partition", "--queue", metavar="NAME", help="where the scheduler is to look for nodes")
    group.add_argument("--account", metavar="NAME", help="whom the scheduler charges")
    group.add_argument(
        "--launcher-config",
        metavar="FILE",
        help="more for the scheduler: lines such as #SBATCH --mem=8G, and commands that come before the engines, such as module load; for "
        "Kubernetes a part of a Job in YAML",
    )


def cluster_of(found: argparse.Namespace) -> ClusterOptions:
    """Return the options of a cluster that were found in a line; a `UsageError` where they contradict each other."""
    number, count = getattr(found, "num_engines", None), getattr(found, "count", None)
    if number is not None and count is not None and number != count:
        raise UsageError(f"%distribute start {count} --engines {number}: give one number of engines.")
    return ClusterOptions(
        num_engines=count if number is None else number,
        device=getattr(found, "device", "auto"),
        devices=getattr(found, "devices", "exclusive"),
        force=getattr(found, "force", False),
        launcher=getattr(found, "launcher", None),
        hosts=getattr(found, "hosts", ()),
        remote_python=getattr(found, "remote_python", None),
        connect=getattr(found, "connect", None),
        profile=getattr(found, "profile", None),
        job=JobOptions(
            nodes=getattr(found, "nodes", None),
            config=getattr(found, "launcher_config", None),
            **{option: getattr(found, option, None) for option in ("cpus", "gpus", "mem", "time", "partition", "account")},
        ),
    )
