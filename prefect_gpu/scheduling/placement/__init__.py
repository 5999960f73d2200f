"""Where does a job go?"""
