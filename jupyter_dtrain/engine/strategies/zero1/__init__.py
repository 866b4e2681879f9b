"""What optimizers keep of their parameters, shared out over the ranks (`--strategy zero1`)."""
