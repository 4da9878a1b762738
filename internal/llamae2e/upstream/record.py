"""A pytest plugin for llama.cpp's tools/server/tests: local models take the place of those that
the tests download, and each answer of the server is written down, so that the answers of two
servers can be compared. Assertions about the models' texts are not needed for that, and are
removed by prepare.py.

Variables: KVTIER_MODEL is a small model; KVTIER_RECORD is the file to write; KVTIER_PAGES is the
folder of pages. Each test has a directory of its own there: some make servers die on purpose.
"""

import json
import os
import threading

import pytest
import utils

model = os.environ["KVTIER_MODEL"]
lock = threading.Lock()
answers = []  # of the test that runs
tests = {}


start = utils.ServerProcess.start


def start_local(self, *args, **more):
    """Starts a server with the local model in place of one that would be downloaded."""
    if self.model_hf_repo or self.model_url:
        self.model_hf_repo = self.model_hf_file = self.model_url = None
        self.model_file = model
    self.offline, self.n_threads = True, 1  # threads of two servers would wait for each other
    os.environ["OLLAMA_KV_TIER_LOCAL"] = os.path.join(os.environ["KVTIER_PAGES"], str(len(tests)))
    return start(self, *args, **more)


utils.ServerProcess.start = start_local
utils.download_file = lambda *_: model
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = lambda *_: True


def note(*entry):
    with lock:
        answers.append(json.dumps(entry, sort_keys=True, default=str))


request = utils.ServerProcess.make_request
stream = utils.ServerProcess.make_stream_request


def make_request(self, method, path, data=None, headers=None, **more):
    answer = request(self, method, path, data, headers, **more)
    if path != "/health":
        note(method, path, data, answer.status_code, answer.body)
    return answer


def make_stream_request(self, method, path, data=None, headers=None):
    events = []
    try:
        for event in stream(self, method, path, data, headers):
            events.append(json.loads(json.dumps(event)))
            yield event
    except utils.ServerError as e:
        events.append([e.code, e.body])
        raise
    finally:
        note(method, path, data, events)


utils.ServerProcess.make_request = make_request
utils.ServerProcess.make_stream_request = make_stream_request


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        with lock:
            tests[item.nodeid] = {"outcome": report.outcome, "answers": sorted(answers)}
            answers.clear()
    return report


def pytest_sessionfinish():
    with open(os.environ["KVTIER_RECORD"], "w") as f:
        json.dump(tests, f, indent=1, sort_keys=True)
