#!/bin/sh
# Makes sure that Grid Engine and Open MPI are there for the tests of their launchers: Debian's, which apt is not to start.
[ -x /usr/lib/gridengine/sge_qmaster ] && [ -x /usr/lib/gridengine/sge_execd ] && [ -x /usr/bin/mpiexec ] && exit 0
if [ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing gridengine and openmpi-bin with apt-get for the tests of their launchers; they are not started."
  export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends gridengine-master gridengine-exec gridengine-client openmpi-bin && exit 0
fi
echo "There is no Grid Engine or Open MPI, and apt-get cannot install them here: the tests of their launchers are skipped." >&2
