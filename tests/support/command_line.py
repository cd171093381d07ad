"""The command line as the tests call it: in this process."""

import pytest

from hemnet import cli


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(args)
    code = exit_info.value.code
    assert isinstance(code, int)
    return code
