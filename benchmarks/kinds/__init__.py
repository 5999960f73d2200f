"""Do runs end sooner where the pool knows how fast each program is on each kind of device?"""
