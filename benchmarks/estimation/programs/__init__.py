"""Small real trainings, as users write them: each prepares data, trains in steps, and saves a result.

Every program is a function of its hyper-parameters. None reads the clock, and none stops early: what a run needs
follows from its parameters. All work in the current directory, which belongs to the run.
"""
