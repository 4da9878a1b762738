"""Compares the answers of two servers that record.py wrote down: compare.py STOCK AGAIN OURS.

STOCK and AGAIN are two runs of the stock server. Tests in which these differ, as those with
requests at the same time, are listed and not compared with OURS.
"""

import json
import re
import sys

# Parts of an answer that differ between two runs of one server.
VOLATILE = {
    "timings", "id", "created", "created_at", "completed_at", "id_slot", "id_task", "t_start", "response_id", "item_id",
    "previous_response_id", "call_id", "media_marker", "build_info", "system_fingerprint", "prompt_ms", "predicted_ms", "time_ms",
}

# Tests whose answers may differ, and why.
EXEMPT = {
    "test_kv_keep_only_active": "the cache in memory is off: --cache-ram",
    "test_slot_save": "the slots' files are the test's own: nothing of them is stored",
    "test_metrics": "counters of slots that were saved",
    "test_server_slots": "one token was computed in a slot, to learn the form of its file",
}


def stable(value):
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [stable(v) for v in value]
    if isinstance(value, str):
        return re.sub(r"(chatcmpl|resp|msg|call|fc|rs|cmpl)[-_][A-Za-z0-9]+", r"\1", value)
    return value


def differences(a, b, path=""):
    """Lines about the parts of two answers that differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [d for k in sorted(a.keys() | b.keys()) for d in differences(a.get(k), b.get(k), path + "/" + k)]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, "%s/%d" % (path, i))]
    return [] if a == b else ["%s: stock %.200s, ours %.200s" % (path, json.dumps(a), json.dumps(b))]


def answers(run, test):
    """The stable parts of a test's answers. Requests that are sent at once end in any order."""
    return sorted((stable(json.loads(x)) for x in run[test]["answers"]), key=json.dumps)


def same(a, b, test):
    return a[test]["outcome"] == b[test]["outcome"] and answers(a, test) == answers(b, test)


stock, again, ours = (json.load(open(path)) for path in sys.argv[1:])
if not stock.keys() == again.keys() == ours.keys():
    sys.exit("the runs have other tests: %s" % sorted((stock.keys() ^ ours.keys()) | (stock.keys() ^ again.keys())))
failed = tests = compared = 0
for test in sorted(stock):
    if any(name in test for name in EXEMPT):
        continue
    if not same(stock, again, test):
        print("%s: not compared, two runs of the stock server differ" % test)
        continue
    tests += 1
    compared += len(stock[test]["answers"])
    if same(stock, ours, test):
        continue
    failed += 1
    print("%s: stock %s, ours %s" % (test, stock[test]["outcome"], ours[test]["outcome"]))
    a, b = answers(stock, test), answers(ours, test)
    for x, y in zip(a, b):
        for line in differences(x[3:], y[3:], "%s %s" % (x[0], x[1]))[:5]:
            print("  " + line)
    if len(a) != len(b):
        print("  %d answers, ours %d" % (len(a), len(b)))
print("%d of %d tests compared, %d answers; %d tests differ" % (tests, len(stock), compared, failed))
sys.exit(failed > 0 or compared == 0)
