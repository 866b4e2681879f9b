"""Clusters over several hosts: an agent on each host starts, watches and ends its engines, as the kernel does on its own host.

``host_agent.py`` runs on each host (with ``agent_files.py`` and ``host_facts.py``). ``remote_host.py`` is the notebook's side of one host,
``host_processes.py`` of all of them; ``host_cluster.py`` and ``ssh_launcher.py`` are the cluster and its launcher. Frames (``frames.py``)
go over the standard streams of one ``ssh`` per host: SSH authenticates and encrypts. Nothing in them is pickled.
"""
