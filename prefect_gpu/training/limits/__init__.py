"""What a run is held to: its memory, its cores, its devices; and what it uses of them."""
