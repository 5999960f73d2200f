"""What is each owner owed, what has it had, and whose turn is it?"""
