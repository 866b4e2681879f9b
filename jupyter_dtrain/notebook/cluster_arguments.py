"""The options of a cluster, which both magics share."""

from __future__ import annotations

import argparse

from ..cluster_options import ClusterOptions, JobOptions
from ..errors import UsageError
from . import option_values


def add_cluster(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of a cluster to a parser; `names` are the flags for the number of engines."""
    add_engines(parser, *names)
    add_hosts(parser)


def add_engines(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options for the number of engines and their devices."""
    group = parser.add_argument_group("engines")
    explained = "engines to use (default: one per GPU; on CPU one per two cores, at least 2)"
    group.add_argument(*names, dest="num_engines", type=option_values.whole_number, metavar="N", help=explained)
    group.add_argument(
        "--force", action="store_true", help="start as many engines as --engines says, even if the machine has too few cores or memory"
    )
    group.add_argument("--device", default="auto", metavar="KIND", help="device of the engines: auto, cpu or cuda (default: auto)")
    group.add_argument(
        "--devices",
        default="exclusive",
        metavar="KIND",
        help="exclusive (one GPU per engine) or shared (several engines may share a GPU, to try a cell on more engines than GPUs) "
        "(default: exclusive)",
    )


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options for hosts and launchers."""
    group = parser.add_argument_group("hosts and schedulers")
    group.add_argument(
        "--launcher",
        metavar="NAME",
        help="what starts the engines: local, ssh, mpi, slurm, pbs, lsf, sge, htcondor, kubernetes, connect, or a launcher of an "
        "installed package (default: local, or ssh with --hosts, or connect with --connect)",
    )
    group.add_argument(
        "--hosts",
        type=option_values.hosts,
        default=(),
        metavar="A:N,B:N",
        help="hosts to start engines on, as ssh names them, with an optional number of engines each (default: this host)",
    )
    group.add_argument("--remote-python", metavar="PATH", help="path of Python on the hosts (default: the notebook's path)")
    group.add_argument(
        "--connect", metavar="FILE", help="ipcontroller-client.json of a running ipyparallel cluster; engines start beside its engines"
    )
    group.add_argument("--profile", metavar="NAME", help="IPython profile of such a cluster")
    group.add_argument(
        "--nodes", type=option_values.whole_number, metavar="N", help="nodes of the scheduler's job (default: 1, or all of an allocation)"
    )
    group.add_argument(
        "--cpus-per-node",
        dest="cpus",
        type=option_values.whole_number,
        metavar="N",
        help="cores per node (default: one per engine)",
    )
    group.add_argument(
        "--gpus-per-node",
        dest="gpus",
        type=option_values.whole_number,
        metavar="N",
        help="GPUs per node (default: what the scheduler gives)",
    )
    group.add_argument("--mem", metavar="SIZE", help="memory per node, such as 64G (default: what the scheduler gives)")
    group.add_argument("--time", metavar="LIMIT", help="time limit of the job: minutes, or hours as in 2:00:00")
    group.add_argument("--partition", "--queue", metavar="NAME", help="partition or queue of the scheduler")
    group.add_argument("--account", metavar="NAME", help="account that the scheduler charges")
    group.add_argument(
        "--launcher-config",
        metavar="FILE",
        help="file with more lines for the scheduler, such as #SBATCH --mem=8G, and commands to run before the engines, such as module "
        "load; for Kubernetes a part of a Job in YAML",
    )


def cluster_of(found: argparse.Namespace) -> ClusterOptions:
    """Return the cluster options of a parsed line; raise a `UsageError` if they contradict each other."""
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
