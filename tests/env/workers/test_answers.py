"""Answers of several workers on one socket: whole, in the order they come, however large they are."""

import os
import threading

import pytest

from engram.env.workers.answers import _ROOM, Answers, tell


@pytest.fixture
def answers():
    answers = Answers()
    yield answers
    answers.close()
    answers.theirs.close()


@pytest.mark.parametrize("size", [0, 1, _ROOM, _ROOM + 1, 3 * _ROOM, 1_000_000])
def test_an_answer_comes_with_all_that_it_carries(answers, size):
    payload = os.urandom(size)
    thread = threading.Thread(target=tell, args=(answers.theirs.fileno(), 3, 1, -1, payload))
    thread.start()
    assert answers.receive() == (3, 1, -1, payload)
    thread.join()


def test_answers_come_in_the_order_they_are_told(answers):
    for who in (2, 0, 1):
        tell(answers.theirs.fileno(), who, 0, 7 + who, bytes(who))
    assert [answers.receive() for _ in range(3)] == [(2, 0, 9, bytes(2)), (0, 0, 7, b""), (1, 0, 8, bytes(1))]


def test_answers_that_wait_are_whole_wherever_reading_cuts_them(answers):
    payloads = [os.urandom(3000) for _ in range(40)]  # more than is read at once
    for group, payload in enumerate(payloads):
        tell(answers.theirs.fileno(), 0, 0, group, payload)
    assert [answers.receive() for _ in payloads] == [(0, 0, group, payload) for group, payload in enumerate(payloads)]


def test_large_answers_of_many_are_not_mixed(answers):
    payloads = {who: bytes([who]) * (50 * _ROOM + who) for who in range(4)}
    threads = [
        threading.Thread(target=tell, args=(answers.theirs.fileno(), who, 0, 0, payload))
        for who, payload in payloads.items()
    ]
    for thread in threads:
        thread.start()
    assert {who: payload for who, _, _, payload in (answers.receive() for _ in payloads)} == payloads
    for thread in threads:
        thread.join()


def test_nothing_is_none_after_a_while_and_last_words_are_heard(answers):
    assert answers.receive() is None
    tell(answers.theirs.fileno(), 0, 0, 0, b"last")
    answers.theirs.close()
    assert answers.receive() == (0, 0, 0, b"last")
    assert answers.receive() is None
