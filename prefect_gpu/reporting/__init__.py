"""What happened, as pictures for people: made from the history of finished runs."""
