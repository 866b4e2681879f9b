"""How the ranks share the work of a cell: one folder a strategy.

Its ``__init__`` describes it (:class:`~jupyter_dtrain.strategies.StrategyInfo`) and imports nothing heavy, as the kernel reads it; its
``strategy`` module has the class that engines import.
"""
