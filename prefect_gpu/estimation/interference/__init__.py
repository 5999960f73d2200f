"""How much runs slow each other down, learned from those that were co-located."""
