"""`records.where`: which kinds of events of a topic are learnt from.

`conditions.py` has the settings: what a field must hold. `selection.py` evaluates them on a chunk before it is decoded:
a look reads one field alone, and only the records that match are decoded as rows.
"""
