"""The run's end of the channel to the controller: one connection, whatever trains in this process."""
