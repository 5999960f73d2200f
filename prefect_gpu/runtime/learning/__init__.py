"""The pool learns from its own history what runs need, and corrects that while they train."""
