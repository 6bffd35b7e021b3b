import logging

import pytest

from tyler.cli.logs import plain_lines, quietly

logger = logging.getLogger("tyler.somewhere")


def test_messages_are_plain_lines_on_stderr_and_warnings_say_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_lines():
        logger.info("left out %d of %d", 1, 3)
        logger.warning("no network")
    logger.info("afterwards")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "left out 1 of 3\nwarning: no network\n")


def test_quiet_leaves_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_lines(), quietly(True):
        logger.info("left out %d of %d", 1, 3)
        logger.warning("no network")
    assert capsys.readouterr().err == "warning: no network\n"


def test_of_several_processes_only_the_first_tells_what_is_no_warning(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    with plain_lines():
        logger.info("loading")
        logger.warning("no network")
    assert capsys.readouterr().err == "warning: no network\n"
