"""The board: when a new posting is due."""

from typing import Any, cast

from millrace.training.trainer.board import Board, Posting
from millrace.training.trainer.save_figures import LastSave


def save() -> LastSave:
    return LastSave(manifest=cast("Any", None), at=0.0)


def posting(last_save: LastSave | None) -> Posting:
    return Posting(
        live=cast("Any", None),
        learning_rate=0.1,
        step=1,
        model=cast("Any", None),
        last_save=last_save,
        saves=0,
        failed_saves=0,
        save_error=None,
        learnt_to_ms=None,
    )


def test_a_board_wants_its_first_posting_at_once() -> None:
    assert Board().wants(0.0, None)


def test_a_board_wants_a_posting_once_a_second() -> None:
    board, last = Board(), save()
    board.post(posting(last), 10.0)
    assert not board.wants(10.99, last)
    assert board.wants(11.0, last)


def test_a_board_wants_a_posting_after_each_save_at_once() -> None:
    board = Board()
    board.post(posting(save()), 10.0)
    assert board.wants(10.0, save())
