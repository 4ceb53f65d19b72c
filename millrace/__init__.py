"""millrace: a Kafka topic goes in; a Keras model that never stops learning comes out.

In the repository the four packages are links to the folders beside this one; an installed millrace holds them itself.
"""
