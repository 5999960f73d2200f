"""Who shares a device with whom, and who gives way to whom on it?"""
