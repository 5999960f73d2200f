"""Which cores does a job have, and who gives some up?"""
