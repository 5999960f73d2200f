"""Liquid (TPDS 2022)."""
