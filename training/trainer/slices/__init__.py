"""The live score by whom: by the values of fields that `records.slices` names."""
