"""Which waiting job is looked at first?"""
