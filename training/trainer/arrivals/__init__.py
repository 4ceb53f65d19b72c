"""The score on arrival: what was predicted of a record when it came, compared with the label that came later.

`arrival_score` predicts and scores, `predictions` keeps what was predicted until then, and `figures` shows it. The
records come from `pipelines/shaping/labels/arrivals.py`.
"""
