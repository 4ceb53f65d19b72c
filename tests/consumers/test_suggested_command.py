"""Commands in messages can be pasted: they name the config file that the process was given."""

import shlex

from millrace.consumers.suggested_command import name_config, suggested_command


def test_a_suggested_command_names_the_config_as_it_was_given() -> None:
    name_config("../my models/clicks.yaml")
    text = suggested_command("rewind", "--to", "0", "--skip", "clicks:0:1-2")
    assert text == "millrace rewind -c '../my models/clicks.yaml' --to 0 --skip clicks:0:1-2"
    assert shlex.split(text)[3] == "../my models/clicks.yaml"


def test_the_config_comes_after_all_words_of_the_verb() -> None:
    name_config("clicks.yaml")
    assert suggested_command("checkpoints", "verify") == "millrace checkpoints verify -c clicks.yaml"


def test_without_a_config_a_placeholder_stands_in_its_place() -> None:
    assert suggested_command("run", "--start-over") == "millrace run -c CONFIG --start-over"
