"""Tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from prefect_gpu.reporting.tables import WORDS, plain_table


def test_a_name_that_users_give_does_nothing_to_a_terminal() -> None:
    table = plain_table(("Run", WORDS), ("Why", WORDS))
    table.add_row(Text("clears\x1b[2J", "red"), "rings\a\nand returns\r")
    console = Console(width=80, no_color=True)
    with console.capture() as said:
        console.print(table)
    assert not set(said.get()) & set("\x1b\a\r") and "clears�[2J" in said.get() and "and returns�" in said.get()
