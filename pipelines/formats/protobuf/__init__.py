"""Protobuf: messages of one type, by a descriptor that is given or that the registry has."""
