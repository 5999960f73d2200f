"""Who is stopped to make room, and who is left alone?"""
