"""What slows simulated runs down, one module for each effect; :class:`..physics.Slowdowns` composes them."""
