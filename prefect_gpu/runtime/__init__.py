"""The live world: a controller that carries out the scheduler's instructions on real devices. It needs no Prefect."""
