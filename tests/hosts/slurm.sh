#!/bin/sh
# Makes sure that Slurm's daemons are there for the tests of its jobs: Debian's, which apt is not to start.
[ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && [ -x /usr/sbin/munged ] && exit 0
if [ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing slurmctld, slurmd and munge with apt-get for the tests of Slurm's jobs; they are not started."
  export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends slurmctld slurmd slurm-client munge && exit 0
fi
echo "There is no Slurm, and apt-get cannot install it here: the tests of its jobs are skipped." >&2
