"""How many devices does an elastic job get (F-scheduling)?"""
