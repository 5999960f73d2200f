"""A pool in a storm: everything around it fails, is late, lies or is taken away; nothing may be lost, or done twice."""
