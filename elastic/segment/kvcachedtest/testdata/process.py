"""A process whose memory kvcached counts. Lines on stdin have its used and its kept bytes; each is
answered with the limit that kvcached would obey."""
import sys

from kvcached.mem_info_tracker import MemInfoTracker

tracker = MemInfoTracker(int(sys.argv[1]))
print(tracker.ipc_name, flush=True)
for line in sys.stdin:
    used, kept = map(int, line.split())
    tracker.update_memory_usage(used, kept)
    print(tracker.check_and_get_resize_target(0, 1, 1), flush=True)
