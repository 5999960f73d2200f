"""The golden record: what every profile says in eleven worlds, so that a redesign can show that it says the same.

A *log* is a world with its jobs (:mod:`tests.golden.logs`): published traces, an experiment of each paper, and random
events. Each profile is run in each. Every instruction that changes anything is one line: when, what, which job, and
where, with how many cores, how much memory, what weight. Reasons are for people and may be reworded; ``Hold`` only says
why somebody waits. Neither is in the lines, nor is any name of the code.

Kept is, for each log in ``<log>.json`` and each profile, a digest of all lines and one letter for each line. The
letters tell where the first difference is; ``--dump`` on both commits, and ``diff``, tell what it is. A profile that
says the same as another one has that one's name instead.

    python -m tests.golden.record --check                    # all; ends with code 1 where something differs
    python -m tests.golden.record --check --only adaptive --log specon
    python -m tests.golden.record --dump --only adaptive --log specon > said.txt
    python -m tests.golden.record --update                   # where the difference is meant: say so in the commit

Published traces are read from ``PREFECT_GPU_TRACES``, or from ``shared/traces`` beside the checkout.

**How long.** Jobs are as many as fit into the time: 400 of ef_cluster07 (on four nodes, so that they wait), 300 of
trace3, 200 of trace0, 400 of CODA's, 256 of the mixes. After 1,500 lines or 4,000 decisions a log ends for a profile:
preemptive ones say a lot where stopping is free, and some stop and start the same jobs for ever in a world that they
were not made for. All of it takes about two minutes of CPU time.

**What makes it the same everywhere.** Nothing depends on the clock, the order of sets or the machine. Times are whole
milliseconds and weights are whole millionths, cut where no round number is: a sum whose last digit is another one
(Python 3.12 adds floats more exactly, another numpy adds in another order) does not change a line. Where such a digit
decides between two jobs, it does change what follows. CODA's jobs are drawn by numpy's generator, whose draws a later
numpy may change: the lines of that log then differ from the first on, for all profiles.
"""
