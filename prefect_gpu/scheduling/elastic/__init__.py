"""How many devices does an elastic job get, on one node (F-scheduling) or on several?"""
