// The segment of one pool: 24 bytes in /dev/shm through which tools set its limit.
//
// The layout, the locks and the meaning are those of kvcached 0.1.5: three int64_t of the
// machine, `total` (the limit), `used` and `prealloc`; flock LOCK_SH to read, LOCK_EX to
// write; tools find segments by their size of 24 bytes and a total above zero. The file is
// read and written, not mapped: a file that someone cuts short under a mapping is SIGBUS.
#pragma once

#include <cstdint>
#include <string>

#include "shm/life.h"

namespace kvc {

struct Pool;

struct SegmentFields {
    int64_t total, used, prealloc; // bytes
};
static_assert(sizeof(SegmentFields) == 24, "the layout of kvcached");

class Segment {
public:
    // attach takes a name, and writes the first fields.
    int attach(const std::string & name, const SegmentFields & first);
    ~Segment();

    // A Round holds the segment's lock. Fields are those that tools left; `fresh` says that
    // the segment was missing or had another size, and begins anew.
    class Round {
    public:
        ~Round();
        int begin(const std::string & name);
        int write(const SegmentFields & fields);
        SegmentFields fields{};
        bool fresh = false;

    private:
        int read(const std::string & name);

        int fd_ = -1;
    };

    const std::string & name() const { return name_; }
    int keep() { return life_.keep(); }
    int tell(const Told & told) { return life_.tell(told); }

    Told told; // what the next round tells

    // The total that this process last wrote or applied. A tool has set another one; the
    // pool's own limit may have changed, too, by kvc_pool_resize.
    int64_t known_total = 0;

private:
    Life        life_;
    std::string name_;
    bool        attached_ = false;
};

// segment_name checks a name and leaves a leading slash out.
int segment_name(const char * given, std::string & out);

// The functions of kvc.h.
int attach(Pool & pool, const char * name);
int poll(Pool & pool);
int tell(Pool & pool, int64_t promised, int64_t lacking, int64_t spare);
int reap(const char * prefix, int * removed);

}  // namespace kvc
