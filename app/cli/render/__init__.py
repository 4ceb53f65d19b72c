"""How results are shown in a terminal: tables and sentences. Pure."""
