"""Clusters over several hosts: one agent on each, below which its engines are started, watched and ended as on the notebook's own.

``host_agent.py`` is a host's side (with ``agent_files.py`` and ``host_facts.py``), ``remote_host.py`` the notebook's of one host,
``host_processes.py`` of all of them; ``host_cluster.py`` and ``ssh_launcher.py`` are the cluster and its launcher. Between them go frames
(``frames.py``) over the standard streams of one ``ssh`` for each host: SSH says who is who, and hides what is sent. Nothing in them is
pickled.
"""
