"""What the finished runs of one program, or of all, say about the next one."""
