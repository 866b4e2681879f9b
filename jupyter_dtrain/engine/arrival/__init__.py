"""What came from the notebook, made whole on an engine: optimizers, modules beside the notebook, names of devices, warnings."""
