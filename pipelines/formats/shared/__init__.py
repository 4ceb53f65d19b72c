"""What the formats share: the Decoder protocol, where a field is in a record, columns, rules, verdicts."""
