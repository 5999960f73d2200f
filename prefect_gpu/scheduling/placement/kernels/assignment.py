"""Give each row a column of its own so that the costs add up to least. Numbers only; pure.

The shortest augmenting paths of Jonker and Volgenant (Computing 38, 1987), all columns of a step at once.
"""

from __future__ import annotations

import numpy as np


def assign(costs: np.ndarray) -> list[int]:
    """The column of each row.

    Args:
        costs: Finite; shape (rows, columns), at least as many columns as rows.

    Raises:
        ValueError: There are fewer columns than rows.

    Example:
        >>> assign(np.array([[1.0, 2.0], [1.0, 9.0]]))
        [1, 0]
    """
    rows, columns = costs.shape
    if columns < rows:
        raise ValueError(f"{rows} rows need as many columns, and there are {columns}")
    of_row, of_column = np.zeros(rows), np.zeros(columns)  # the duals
    holder = np.full(columns, -1)
    for first in range(rows):
        least, before = np.full(columns, np.inf), np.full(columns, -1)
        done = np.zeros(columns, dtype=bool)
        row, at, path = first, 0.0, -1
        while True:
            through = at + costs[row] - of_row[row] - of_column
            better = ~done & (through < least)
            least[better], before[better] = through[better], path
            path = int(np.argmin(np.where(done, np.inf, least)))
            at, done[path] = least[path], True
            if holder[path] < 0:
                break
            row = int(holder[path])
        others = done.copy()
        others[path] = False
        of_row[holder[others]] += at - least[others]
        of_row[first] += at
        of_column[done] -= at - least[done]
        while path >= 0:
            previous = int(before[path])
            holder[path] = holder[previous] if previous >= 0 else first
            path = previous
    found = [0] * rows
    for column in np.flatnonzero(holder >= 0):
        found[int(holder[column])] = int(column)
    return found
