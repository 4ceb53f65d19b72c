"""How hard the properties are tried.

In the gate a little, and always the same examples, so that nobody's change is blamed for a find that was long due. For
a proof longer, and other examples for each seed, which the command line prints because it was given there:

    pytest tests/properties --hypothesis-profile=proof --hypothesis-seed=17
"""

from hypothesis import settings

from tests.properties.effort import PROOF

settings.register_profile(PROOF, print_blob=True)
