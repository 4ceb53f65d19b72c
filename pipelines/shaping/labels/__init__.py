"""Labels that come later, on topics of their own: each record waits in Kafka until its label may have come.

A record of event time t is due when the labels up to t + `within` have been read, `early` after that. Only labels
wait in memory. `options` has the settings, `label_reader` reads the labels, `clock` knows up to when, `index` keeps
them, `silence` says when none means that something is broken, and `join` gives records their labels, and keeps the
account of both. `pipelines/gates/label_gate.py` holds records until they are due.
"""
