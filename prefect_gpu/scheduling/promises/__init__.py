"""Which deadlines are promised, and who gets devices when so that they are kept?"""
