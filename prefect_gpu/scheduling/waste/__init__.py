"""When does a run hold a device without using it, and what is done about it?"""
