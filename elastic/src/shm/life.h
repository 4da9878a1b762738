// A lock file that tells whether the process of a segment lives: /dev/shm/NAME.lock, locked
// by flock as long as its process has the segment, with what the process tells of itself. Process numbers would mislead:
// containers that share /dev/shm count them apart.
#pragma once

#include <cstdint>
#include <string>

namespace kvc {

// What a process tells programs that divide memory, in bytes.
// Not 24 bytes, by which tools know a segment.
struct Told {
    int64_t version  = 1;
    int64_t limit    = 0; // in force
    int64_t promised = 0; // that work which runs will commit under any limit
    int64_t lacking  = 0; // for work that waits
    int64_t spare    = 0; // part of what is committed that a lower limit would free
};
static_assert(sizeof(Told) == 40, "the layout of NAME.lock");

// open_plain opens a regular file of this user in /dev/shm, or makes it (mode 0600). No link is
// followed. A descriptor or a code; -ENOENT where the file is missing and `make` is false.
int open_plain(const std::string & name, bool make);

class Life {
public:
    Life() = default;
    ~Life() { end(); }
    Life(const Life &) = delete;

    // begin locks NAME.lock. KVC_E_BUSY where a live process has it. Waits up to wait_ms, since
    // those who only look at a lock hold it for a moment.
    int begin(const std::string & name, int wait_ms);

    // keep makes the lock file again where it was removed.
    int keep();

    // tell writes to the lock file. A reader may see some numbers of now and some of before.
    int tell(const Told & told);

    // end removes the lock file and unlocks it.
    void end();

private:
    int lock_once(const std::string & name, bool * held_by_other);

    int         fd_ = -1;
    std::string name_; // of the lock file
    Told        told_{0}; // of the last write
};

// close_lives_in_child closes the lock files that a child got from fork: a lock belongs to
// all processes that have the file open. REQUIRES: no other thread (a child after fork).
void close_lives_in_child();

}  // namespace kvc
