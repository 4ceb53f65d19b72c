"""Proving: a trainer is killed again and again, and what it has learnt is compared with what was written.

Everything here watches the service from outside: its process, its output, what it leaves on disk and in Kafka. None
of it runs inside `millrace run`. `millrace prove` kills a user's own model, our tests one that counts.
"""
