"""Cores, live: does the tuner find what four input pipelines can use, and does training get back what a flow took?"""
