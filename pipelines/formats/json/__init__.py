"""JSON: one object a record, bare or in Confluent's wire format."""
