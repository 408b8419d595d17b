import importlib
import inspect
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# What the tests start shares the cores with other tests: threads that wait for a core make it crawl
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "cleanrl"))
import environments  # noqa: F401 (registers them)
import torch
import torch.distributed as dist
from every_script import FRAMES, SCRIPTS, options_of
from helpers import copied, small_agent

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as for `make test &` in a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # whatever OMP_NUM_THREADS was
LONG = "docs multigpu sweep procgen atari throughput envpool tune report atari_lstm continuous multidiscrete ablations"


def pytest_collection_modifyitems(items):
    """Files of half a minute or more come first, so that no process is left alone with one at the end."""
    order = [f"test_{name}" for name in LONG.split()]
    items.sort(key=lambda item: order.index(item.path.stem) if item.path.stem in order else len(order))


@pytest.fixture(autouse=True)
def bare_command_line(monkeypatch):
    """Run folders note sys.argv, which otherwise holds pytest's flags; scripts add the current folder to sys.path."""
    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    """Run folders go below tmp_path, the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spy(monkeypatch):
    """Lets spy(owner, name) list the calls of a function, with its arguments by name and its result as `result`."""

    def spy_on(owner, name):
        function = getattr(owner, name)
        calls = []

        def spied(*args, **kwargs):
            arguments = inspect.signature(function).bind(*args, **kwargs).arguments
            calls.append(SimpleNamespace(**copied(arguments)))
            result = function(*args, **kwargs)
            calls[-1].result = copied(result)
            return result

        monkeypatch.setattr(owner, name, spied)
        return calls

    return spy_on


@pytest.fixture
def refusal(in_tmp_path):
    """main of a script with these arguments, which must raise a UserError and create nothing; what it says."""

    def call(script, **arguments):
        with pytest.raises(script.UserError) as error:
            script.main(script.Args(**arguments))
        assert not list(in_tmp_path.iterdir())
        return str(error.value)

    return call


@pytest.fixture(params=SCRIPTS)
def every_script(request, monkeypatch):
    """Each script of cleanrl/ in turn; with a small network where it learns from frames, and those of several processes
    as the only one."""
    name = request.param
    options_of(name)  # says what a new script lacks
    if name == "ppo_procgen":
        pytest.importorskip("procgen")
    script = importlib.import_module(name)
    if name in FRAMES:
        monkeypatch.setattr(script, "Agent", small_agent(script))
    needs_group = hasattr(script, "join_processes") and not dist.is_initialized()  # other tests leave one
    if needs_group:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield script
    if needs_group:
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def chromium():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install -e '.[dev]'")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(programs):
        pytest.skip("no chromium with chromedriver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """With the window, the colors and the log of a new one."""
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.get_log("browser")
    return chromium
