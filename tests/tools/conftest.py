"""For the tests of the tools: each as it is typed, without the seconds that it takes to load."""

import pytest
import sweep
import tyro
from command_line import one_line_errors


@pytest.fixture
def tool_here(in_tmp_path, capsys):
    """A program of benchmark/ as typed below tmp_path, but in this process. Returns its stdout and stderr; its exit
    status must be `status`, unless that is None."""

    def call(tool, *words, status=0, kind="Args"):
        sweep.version_seen.cache_clear()  # a process that is typed anew looks anew
        sweep.read_folder.cache_clear()
        sweep.defined_in.cache_clear()
        try:
            with one_line_errors():
                ended = tool.main(tyro.cli(getattr(tool, kind), args=list(map(str, words)))) or 0
        except SystemExit as stop:
            ended = stop.code
        stdout, stderr = capsys.readouterr()
        assert status in (None, ended), (stdout, stderr)
        return stdout, stderr

    return call
