"""Writers and readers that create a known load on a topic and check it: for the demo, `prove` and the tests.

A trainer never imports this package.
"""
