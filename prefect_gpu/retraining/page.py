"""What was decided about a model, as a page for people: Markdown, for an artifact of Prefect's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefect_gpu.retraining.comparison import Comparison
from prefect_gpu.retraining.versions import Decision, Version

_PAST = {"promoted": "promoted", "kept": "judged, and not promoted", "rolled back": "made the champion again"}


def decision_page(
    decision: Decision,
    challenger: Version,
    champion: Version | None,
    comparison: Comparison | None,
) -> str:
    """The decision, why, and the numbers of both models side by side.

    Args:
        champion: The model that the challenger was compared with; None: there was none.
        comparison: None: the champion had no answers to compare.
    """
    if champion is None:
        told = [f"# {decision.champion} is the first champion", decision.reason, _models({}, challenger, None)]
        return "\n\n".join(told)
    if decision.action == "promoted":
        title = f"# {challenger.name} is the new champion, instead of {champion.name}"
    else:
        title = f"# {champion.name} stays the champion"
    if comparison is None:
        return "\n\n".join([title, decision.reason, _models({}, challenger, champion)])
    rows = {comparison.loss: (f"{comparison.challenger:.4f}", f"{comparison.champion:.4f}")}
    test = [
        "| the test | |",
        "|---|---|",
        f"| smaller {comparison.loss} by | {comparison.gain:+.4f} |",
        f"| {comparison.confidence:.0%} interval | {comparison.low:+.4f} to {comparison.high:+.4f} |",
        f"| least gain asked for | {comparison.min_gain:.4g} |",
        f"| p-value | {comparison.p_value:.4f} |",
        f"| level | {comparison.level:.3g} |",
        f"| held-out examples | {comparison.examples} |",
    ]
    return "\n\n".join([title, decision.reason, _models(rows, challenger, champion), "\n".join(test)])


def _models(rows: Mapping[str, tuple[str, str]], challenger: Version, champion: Version | None) -> str:
    both = [one for one in (challenger, champion) if one is not None]
    names = [f"{challenger.name}, the challenger", f"{champion.name}, the champion" if champion else ""]
    table = [[" ", *names[: len(both)]], ["---"] * (1 + len(both))]
    table += [[name, *values[: len(both)]] for name, values in rows.items()]
    table += [
        ["trained on data", *(f"`{one.data_version}`" for one in both)],
        ["by code", *(f"`{one.code_version[:18]}`" if one.code_version else "–" for one in both)],
        ["in run", *(f"[{one.run[:8]}]({one.run_url})" if one.run_url else one.run[:8] or "–" for one in both)],
        ["SHA-256", *(f"`{one.sha256[:12]}`" for one in both)],
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def history_page(decisions: Sequence[Decision]) -> str:
    """Who is the champion, and what was decided about models before; the newest first."""
    newest = decisions[-1]
    lines = [
        f"| {one.at.replace('T', ' ')} | {one.version} was {_PAST[one.action]} | {one.champion} | {_cell(one.reason)} |"
        for one in reversed(decisions)
    ]
    table = ["| when | what | champion since | why |", "|---|---|---|---|", *lines]
    return "\n".join([f"# {newest.champion} is the champion", "", newest.reason, "", *table])


def _cell(text: str) -> str:
    """A text that people wrote, as it stands in a table: on one line, and within its column."""
    return " ".join(text.split()).replace("|", "\\|")
