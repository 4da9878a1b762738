#include "shm/segment.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kvc.h"
#include "pool/error.h"

namespace kvc {

namespace {

constexpr int    attach_wait_ms = 25; // for each of two locks
constexpr size_t name_max       = 200;

bool ends_with(const std::string & s, const std::string & end) {
    return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

int segment_name(const char * given, std::string & out) {
    if (given == nullptr) {
        return fail(KVC_E_INVALID, "naming a segment: the name is missing");
    }
    const char * name   = *given == '/' ? given + 1 : given;
    const size_t length = strnlen(name, name_max + 1);
    const char * letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (length == 0 || length > name_max || *name == '.' || strspn(name, letters) != length || ends_with(name, ".lock")) {
        return fail(KVC_E_INVALID, "naming a segment \"%.*s\": a name is 1 to %zu letters, digits, '.', '_' and '-', does not begin "
                    "with '.', and does not end in \".lock\"", int(length), name, name_max);
    }
    out.assign(name, length);
    return KVC_OK;
}

Segment::Round::~Round() {
    if (fd_ >= 0) {
        flock(fd_, LOCK_UN); // closing is not enough: a child made by fork has the file, too
        close(fd_);
    }
}

int Segment::Round::begin(const std::string & name) {
    fd_ = open_plain(name, true);
    if (fd_ < 0) {
        const int rc = fd_;
        fd_ = -1;
        return rc;
    }
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK || errno == EINTR
            ? fail(KVC_E_BUSY, "locking the segment %s: another process holds the lock; it is tried again in the next round", name.c_str())
            : fail(KVC_E_SYSTEM, "locking the segment %s: %s", name.c_str(), strerror(errno));
    }
    return read(name);
}

int Segment::Round::read(const std::string & name) {
    struct stat st;
    if (fstat(fd_, &st) != 0) {
        return fail(KVC_E_SYSTEM, "looking at the segment %s: %s", name.c_str(), strerror(errno));
    }
    fresh = st.st_size != sizeof fields;
    if (fresh) {
        return ftruncate(fd_, sizeof fields) == 0
            ? KVC_OK
            : fail(KVC_E_SYSTEM, "giving the segment %s its size of 24 bytes: %s", name.c_str(), strerror(errno));
    }
    const ssize_t n = pread(fd_, &fields, sizeof fields, 0);
    return n == sizeof fields ? KVC_OK
                              : fail(KVC_E_SYSTEM, "reading the segment %s: %zd of 24 bytes, %s", name.c_str(), n,
                                     n < 0 ? strerror(errno) : "no error");
}

int Segment::Round::write(const SegmentFields & next) {
    if (!fresh && memcmp(&next, &fields, sizeof next) == 0) {
        return KVC_OK;
    }
    const ssize_t n = pwrite(fd_, &next, sizeof next, 0);
    if (n != sizeof next) {
        return fail(KVC_E_SYSTEM, "writing a segment: %zd of 24 bytes, %s", n, n < 0 ? strerror(errno) : "no error; is /dev/shm full?");
    }
    fields = next;
    fresh  = false;
    return KVC_OK;
}

int Segment::attach(const std::string & name, const SegmentFields & first) {
    int rc = life_.begin(name, attach_wait_ms);
    if (rc != KVC_OK) {
        return rc;
    }
    // A tool may be looking at the segment of a dead process.
    for (int waited = 0;; waited++) {
        Round round;
        rc = round.begin(name);
        if (rc == KVC_OK && (rc = round.write(first)) == KVC_OK) {
            break;
        }
        if (rc != KVC_E_BUSY || waited == attach_wait_ms) {
            life_.end();
            return rc;
        }
        const timespec millisecond{0, 1000000};
        nanosleep(&millisecond, nullptr);
    }
    name_       = name;
    attached_   = true;
    known_total = first.total;
    return KVC_OK;
}

// The life ends after its segment is gone.
Segment::~Segment() {
    if (attached_) {
        shm_unlink(("/" + name_).c_str());
    }
}

}  // namespace kvc
