"""Gates see each decoded chunk before the blocks.

Some hold the learning before bad input is learnt: a flood of bad records, a schema that no longer fits, labels that do
not come. Three hold nothing back and only see the chunks: `InputGate`, `SliceGate` and `ServedGate`.
"""
