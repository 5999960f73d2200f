"""Every door through which something comes in: whatever stands before it, a clear error or a sane result.

Each is tried with 200 examples in ``make test-all``, and with fewer in ``make test``.
"""
