import os

import pytest
from tests.browser.chromium import Chromium, find


@pytest.fixture(scope="module")
def browser():
    """A browser for the tests of a module; a machine that was told which one must be able to start it."""
    program = find()
    if program is None:
        pytest.skip("no Chromium on this machine; install one, or name it by FEDVEIL_BROWSER")
    try:
        made = Chromium(program)
    except (RuntimeError, OSError) as problem:
        if "FEDVEIL_BROWSER" in os.environ:
            raise
        pytest.skip(f"Chromium does not start here: {problem}")
    yield made
    made.close()
