"""Run a cell as parallel trials, one for each combination of values of ``--vary``; the notebook gets the results of the best."""
