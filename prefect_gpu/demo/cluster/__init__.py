"""``make cluster-demo``: three Docker nodes on this machine, one of which is lost. See :mod:`.__main__`."""
