#!/bin/sh
# Makes sure that there is an SSH server for the tests of several hosts, for root alone: Debian's, which apt is not to start.
[ -x /usr/sbin/sshd ] && exit 0
if [ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing openssh-server with apt-get for the tests of several hosts; it is not started."
  export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends openssh-server openssh-client iproute2 && exit 0
fi
echo "There is no sshd, and apt-get cannot install it here: the tests of several hosts are skipped." >&2
