"""How much do jobs on several nodes slow each other down, and what is done about it?"""
