"""Muri (SIGCOMM 2022): jobs that share GPUs by taking turns on each stage; its simulator's world."""
