"""Is a pool divided as its owners are promised, and what does that cost? See ``__main__``."""
