"""A fork: a changed model that begins with what another has learnt, under a name of its own."""
